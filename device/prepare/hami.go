// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// lockDirMode lets tasks of any user make their locks, and no one remove
// another's.
const lockDirMode = 0o777 | os.ModeSticky

// prepareHAMi gives the units HAMi-core. Where its library or its lock directory
// is not as tasks need it, that is a fault: a task without it has no limits.
func prepareHAMi(units []*plan.Unit, h *gpu.HAMiState, faults *faultClock) {
	for _, u := range units {
		if u.Sharing.Mechanism != gpu.SharingHAMi || u.Unable() != "" {
			continue
		}
		u.HAMi = h
		if err := checkHAMi(*u.HAMi); err != nil {
			faults.add(u, gpu.Fault{Code: "hami-not-ready", Message: "HAMi-core cannot be used: " + err.Error(),
				Action: "set that right; it is healthy again when it is"})
		}
	}
}

// checkHAMi checks the library, and makes the lock directory where there is
// none. One that is there is the operator's, and stays as it is.
func checkHAMi(h gpu.HAMiState) error {
	library, err := os.Stat(h.Library)
	if err != nil {
		return fmt.Errorf("hami.library: %w", err)
	}
	if !library.Mode().IsRegular() || library.Mode().Perm()&0o004 == 0 {
		return fmt.Errorf("hami.library %s has mode %v; tasks of any user need a file that they can read", h.Library, library.Mode())
	}
	locks, err := os.Lstat(h.LockDir)
	if errors.Is(err, fs.ErrNotExist) {
		return makeLockDir(h.LockDir)
	}
	if err != nil {
		return fmt.Errorf("hami.lock_dir: %w", err)
	}
	if !locks.IsDir() || locks.Mode().Perm() != 0o777 {
		return fmt.Errorf("hami.lock_dir %s has mode %v; tasks of any user need a directory that they can write to: chmod 1777", h.LockDir, locks.Mode())
	}
	return nil
}

func makeLockDir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make hami.lock_dir: %w", err)
	}
	if err := os.Chmod(path, lockDirMode); err != nil {
		return fmt.Errorf("make hami.lock_dir: %w", err)
	}
	return nil
}
