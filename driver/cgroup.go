package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where Linux distributions mount control groups.
const cgroupRoot = "/sys/fs/cgroup"

// cgroupPath is where a container's control group is, below the mount. On cgroup
// v2 its name ends as those of Nomad's own tasks do.
func cgroupPath(namespace, id string, unified bool) string {
	if unified {
		return "/" + namespace + "/" + id + ".scope"
	}
	return "/" + namespace + "/" + id
}

// cgroupDirs are the directories that a control group has: one, or one per
// hierarchy of cgroup v1.
func cgroupDirs(path string, unified bool) []string {
	hierarchies := cgroupRoot + "/*"
	if unified {
		hierarchies = cgroupRoot
	}
	found, _ := filepath.Glob(hierarchies + path) // the pattern is valid
	return found
}

// removeCgroup removes the control group of a container that is gone, and those
// that its processes made below. The container runtime does that, unless it is
// killed before it comes to it.
func removeCgroup(path string, unified bool) error {
	for _, dir := range cgroupDirs(path, unified) {
		var all []string
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				all = append(all, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look into control group: %w", err)
		}
		for _, path := range slices.Backward(all) {
			if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove control group %s: %w", path, err)
			}
		}
	}
	return nil
}
