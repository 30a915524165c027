// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// ask sends the commands that it reads, one per line, and prints the answers. It
// prefers the privileged socket, as the original does for root.
func ask(pipeDir string, in io.Reader, out io.Writer) (int, error) {
	var conn connection
	err := errors.New("not tried")
	for _, socket := range []string{"control_privileged", "control"} {
		if conn, err = dial(pipeDir, socket, mpswire.KindUI); err == nil {
			break
		}
	}
	if err != nil {
		//lint:ignore ST1005 The original says it so.
		return 1, errors.New("Cannot find MPS control daemon process")
	}
	defer conn.Close()
	go func() {
		for commands := bufio.NewScanner(in); commands.Scan(); {
			line := commands.Text() + "\n\x00"
			if conn.Send64(uint64(len(line))) != nil {
				return
			}
			if _, err := conn.Write([]byte(line)); err != nil {
				return
			}
		}
		_ = conn.Send64(0)
	}()
	for {
		packet, err := conn.Receive()
		if err != nil || len(packet) < 4 {
			return 1, nil
		}
		if binary.LittleEndian.Uint32(packet) == uiDone {
			return int(packet[4]), nil
		}
		fmt.Fprintln(out, string(packet[4:]))
	}
}

// What a daemon's packet to a UI starts with: an answer follows, or the end.
const (
	uiAnswer = 0
	uiDone   = 1
)
