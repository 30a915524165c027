// SPDX-License-Identifier: MPL-2.0

// Command listen greets whoever connects to the port in its argument.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", ":"+os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		fmt.Fprintln(conn, "hello from the task")
		_ = conn.Close()
	}
}
