// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Prober tries with a CUDA program whether a GPU works.
type Prober struct {
	// Self is the binary that runs itself as the CUDA program (see cuda.Probe).
	Self string
	// LibraryPath is the LD_LIBRARY_PATH that it needs to find the driver.
	LibraryPath string
	// Exec is the command of Self that gives a program an MPS daemon's /dev/shm.
	Exec string
	// Timeout is how long the program may take.
	Timeout time.Duration
}

// Probe tries a device: a GPU, or a MIG instance of it.
func (p Prober) Probe(what hardware.ProbeTarget) error {
	target := cuda.Target{UUID: what.UUID, LibraryPath: p.LibraryPath}
	if what.PipeDir != "" {
		target.PipeDir, target.LogDir = what.PipeDir, what.LogDir
		target.Before = []string{p.Self, p.Exec, what.ShmDir, "/dev/shm", "--"}
	}
	return cuda.Probe(p.Self, target, p.Timeout)
}
