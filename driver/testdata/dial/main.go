// SPDX-License-Identifier: MPL-2.0

// Command dial prints what the Unix socket in its argument says.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	conn, err := net.Dial("unix", os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
