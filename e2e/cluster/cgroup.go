// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const cgroupMount = "/sys/fs/cgroup"

// cgroupParent is the control group of what Nomad itself runs on the node in
// dir; taskCgroup is that of its containers, and their containerd namespace.
func cgroupParent(dir string) string {
	return filepath.Base(filepath.Dir(dir)) + "-" + filepath.Base(dir)
}

func taskCgroup(dir string) string { return cgroupParent(dir) + ".tasks" }

func removeNodeCgroups(dir string) error {
	return errors.Join(removeCgroups(cgroupParent(dir)), removeCgroups(taskCgroup(dir)))
}

// removeCgroups removes the empty control groups that a machine's processes
// leave behind, on cgroup v1 in every hierarchy and on v2 in the one.
func removeCgroups(parent string) error {
	found, err := filepath.Glob(filepath.Join(cgroupMount, "*", parent))
	if err != nil {
		return err
	}
	var problems []error
	for _, root := range append(found, filepath.Join(cgroupMount, parent)) {
		var dirs []string
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return ignoreAbsent(err)
		})
		problems = append(problems, err)
		for _, dir := range slices.Backward(dirs) {
			problems = append(problems, ignoreAbsent(os.Remove(dir)))
		}
	}
	return errors.Join(problems...)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
