// SPDX-License-Identifier: MPL-2.0

// Command mpsgate is the gate that the device plugin puts before an MPS control daemon, and
// what starts daemons, on their own: tests run it, and do not build the plugin.
package main

import (
	"fmt"
	"os"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

func main() {
	args := append(os.Args[1:], "")
	var err error
	switch args[0] {
	case mps.ExecCommand:
		err = mps.Exec(os.Args[2:], os.Environ())
	case mps.GateCommand:
		err = mps.RunGate(os.Args[2:])
	default:
		err = mps.RunGate(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
