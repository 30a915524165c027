// SPDX-License-Identifier: MPL-2.0

// Command unprivileged does what Docker and Kubernetes let programs of any user
// do: listen on a port below 1024, and ping.
package main

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

func main() {
	listener, err := net.Listen("tcp", ":80")
	if err == nil {
		defer listener.Close()
		_, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, syscall.IPPROTO_ICMP)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
