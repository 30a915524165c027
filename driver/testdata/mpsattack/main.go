// SPDX-License-Identifier: MPL-2.0

// Command mpsattack does in a task what NVIDIA's control program does not: it
// speaks to an MPS daemon as any kind of program, and not at all.
//
//	client    be a CUDA program, up to the server
//	stay      the same, and stay there until killed
//	kinds     be every other kind of program
//	log       write what is no log into the log's pipe
//	silence   hold connections at every step, until killed
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

var dir = os.Getenv("CUDA_MPS_PIPE_DIRECTORY")

func main() {
	var err error
	switch os.Args[1] {
	case "client":
		err = client()
	case "stay":
		if err = client(); err == nil {
			time.Sleep(time.Hour)
		}
	case "kinds":
		err = kinds()
	case "log":
		err = log()
	case "silence":
		err = silence()
	}
	if err != nil {
		fmt.Println(os.Args[1], "fails:", err)
	}
}

func become(kind mpswire.Kind) (mpswire.Conn, error) {
	c, err := mpswire.Dial(dir + "/control")
	if err != nil {
		return c, err
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return c, err
	}
	if err := c.ExpectHello(); err != nil {
		return c, err
	}
	return c, c.Introduce(unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}, kind)
}

func client() error {
	c, err := become(mpswire.KindClient)
	if err != nil {
		return err
	}
	if _, err := c.ReceiveFile(); err != nil {
		return err
	}
	fmt.Println("a CUDA program passes")
	return c.Send32(0)
}

func kinds() error {
	for _, kind := range []mpswire.Kind{0, mpswire.KindServer, mpswire.KindDebuggee, mpswire.KindUI, 5, 6} {
		c, err := become(kind)
		if err != nil {
			return err
		}
		if packet, err := c.Receive(); err == nil {
			fmt.Printf("kind %d gets %q\n", uint32(kind), packet)
		} else {
			fmt.Printf("kind %d is refused\n", uint32(kind))
		}
		c.Close()
	}
	return nil
}

func log() error {
	pipe, err := os.OpenFile(dir+"/log", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer pipe.Close()
	garbage := make([]byte, 4096)
	for i := range garbage {
		garbage[i] = 0xff
	}
	for range 100 {
		if _, err := pipe.Write(garbage); err != nil {
			return err
		}
	}
	return nil
}

func silence() error {
	var held []mpswire.Conn
	for range 10 {
		nothing, err := mpswire.Dial(dir + "/control")
		if err != nil {
			return err
		}
		server, err := become(mpswire.KindClient)
		if err != nil {
			return err
		}
		if _, err := server.ReceiveFile(); err != nil {
			return err
		}
		held = append(held, nothing, server)
	}
	time.Sleep(time.Hour)
	return held[0].Close()
}
