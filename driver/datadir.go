// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// A task's root leaves files in its allocation that are root's on the host too: setuid
// programs, and devices where it may make some. In containers they have no effect. On the
// host only the mount of Nomad's data_dir can take it away, which is the operator's.

// dataDirCheck is the state of that mount, from the first start on.
type dataDirCheck struct {
	mu   sync.Mutex
	safe string // "yes", "no", or "" while it is not known
}

func (c *dataDirCheck) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.safe
}

// look looks at the mount of an allocation's directory, and reports whether it is found
// to be unsafe for the first time.
func (c *dataDirCheck) look(allocDir string) (warn bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.safe != "" {
		return false
	}
	lacks, err := rooted.RestrictionsOf(allocDir)
	const wanted = unix.MS_NOSUID | unix.MS_NODEV
	switch {
	case err != nil:
		return false // opening the directory says why
	case lacks&wanted == wanted:
		c.safe = "yes"
	default:
		c.safe = "no"
	}
	return c.safe == "no"
}
