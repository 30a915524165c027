package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
)

// client sends the commands that it reads, one per line, and prints the
// answers. An answer ends with a line that holds nothing but endOfAnswer.
func client(pipeDir string, in io.Reader, out io.Writer) error {
	conn, err := net.Dial("unix", filepath.Join(pipeDir, "control"))
	if err != nil {
		return fmt.Errorf("cannot find MPS control daemon process: %w", err)
	}
	defer conn.Close()
	answers, commands := bufio.NewScanner(conn), bufio.NewScanner(in)
	for commands.Scan() {
		if _, err := fmt.Fprintln(conn, commands.Text()); err != nil {
			return fmt.Errorf("send command: %w", err)
		}
		for answers.Scan() && answers.Text() != endOfAnswer {
			fmt.Fprintln(out, answers.Text())
		}
	}
	return commands.Err()
}
