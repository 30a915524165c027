package nvidia

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
)

// Prober tries with a CUDA program whether a GPU works.
type Prober struct {
	// Self is the binary that runs itself as the CUDA program (see cuda.Probe).
	Self string
	// LibraryPath is the LD_LIBRARY_PATH that it needs to find the driver.
	LibraryPath string
	// Timeout is how long the program may take.
	Timeout time.Duration
}

// Probe tries a device: a GPU, or a MIG instance of it.
func (p Prober) Probe(_, uuid string) error {
	return cuda.Probe(p.Self, uuid, p.LibraryPath, p.Timeout)
}
