// SPDX-License-Identifier: MPL-2.0

// Command mpsgate is the gate that the device plugin puts before an MPS control
// daemon, on its own: the task driver's tests run it, and do not build the plugin.
package main

import (
	"fmt"
	"os"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

func main() {
	fmt.Fprintln(os.Stderr, mps.RunGate(os.Args[1:]))
	os.Exit(1)
}
