// SPDX-License-Identifier: MPL-2.0

// Command mps-client stands in for a CUDA program under MPS: it connects as libcuda does to
// the daemon of CUDA_MPS_PIPE_DIRECTORY, hands each line of its standard input to the server
// that it was given, and prints the answers. The stand-in for NVIDIA's server of MPS v3
// understands "alloc 512" and "free 512" (MiB), "sms", "guarantee", "where" and "environ"
// (see nvidia-cuda-mps-control). It says CUDA_MPS_PINNED_DEVICE_MEM_LIMIT first, if set.
//
//	mps-client           as above
//	mps-client hostile   tries all ways out of its task's namespace (see hostile.go)
//	mps-client flood, mps-client impostor, mps-client introduce 40
//	                     keep the gate busy, take its place, and measure it (see attack.go)
package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

func main() {
	err := errors.New("arguments are not valid")
	switch {
	case len(os.Args) == 1:
		err = run()
	case os.Args[1] == "hostile":
		err = hostile()
	case os.Args[1] == "flood":
		err = flood()
	case os.Args[1] == "impostor":
		err = impostor()
	case os.Args[1] == "introduce" && len(os.Args) == 3:
		err = introduce(os.Args[2])
	case os.Args[1] == disguise && len(os.Args) == 5:
		err = disguised(os.Args[2:])
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// controlSocket is where libcuda looks for a daemon.
func controlSocket() string {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	return filepath.Join(dir, "control")
}

func run() error {
	server, err := connect(controlSocket())
	if err != nil {
		return err
	}
	defer server.Close()
	if limit := os.Getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"); limit != "" {
		if _, err := ask(server, "environ "+limit); err != nil {
			return err
		}
	}
	fmt.Println("connected", os.Getpid())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := ask(server, lines.Text())
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

func ask(server net.Conn, line string) (string, error) {
	if _, err := server.Write([]byte(line)); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := server.Read(answer)
	return string(answer[:n]), err
}

// connect does what libcuda does: it looks whether there is a daemon, gets a connection to
// the server, and tells its status.
func connect(socket string) (net.Conn, error) {
	look, err := mpswire.Dial(socket)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(look.ExpectHello(), look.Close()); err != nil {
		return nil, err
	}
	c, err := mpswire.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	me := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	if err := errors.Join(c.ExpectHello(), c.Introduce(me, mpswire.KindClient)); err != nil {
		return nil, err
	}
	fd, err := c.ReceiveFile()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "server")
	defer file.Close()
	server, err := net.FileConn(file)
	return server, errors.Join(err, c.Send32(0))
}
