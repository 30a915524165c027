// SPDX-License-Identifier: MPL-2.0

package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Root is where Linux distributions mount control groups.
const Root = "/sys/fs/cgroup"

// Path is where a container's control group is made, below the mount. On
// cgroup v2 it lies where Nomad keeps such tasks, and so under the client's
// cgroup_parent, and its name ends as theirs do. On v1 it lies apart: Nomad could
// not take shared cores back from a group that has others in it.
func Path(namespace, id string, r *drivers.Resources, unified bool) string {
	if !unified {
		return "/" + namespace + "/" + id
	}
	parent := strings.TrimPrefix(partitionDir(r, unified), Root)
	if parent == "" {
		parent = "/" + namespace
	}
	return parent + "/" + id + ".scope"
}

// Dirs are the directories that a control group has: one, or one per
// hierarchy of cgroup v1. The root, or an empty name, has none: an action on
// a container's group must never reach everything.
// Where a group cannot be looked for there is an error: it may not be gone.
func Dirs(path string, unified bool) ([]string, error) {
	return dirsBelow(Root, path, unified)
}

func dirsBelow(root, path string, unified bool) (found []string, err error) {
	if strings.Count(filepath.Clean(path), "/") < 2 || strings.ContainsAny(path, `*?[\`) {
		return nil, nil
	}
	hierarchies := []string{""}
	if !unified {
		entries, err := os.ReadDir(root)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for control group: %w", err)
		}
		hierarchies = nil
		for _, entry := range entries {
			hierarchies = append(hierarchies, "/"+entry.Name())
		}
	}
	for _, hierarchy := range hierarchies {
		_, err := os.Lstat(root + hierarchy + path)
		if err == nil {
			found = append(found, root+hierarchy+path)
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return nil, fmt.Errorf("look for control group: %w", err)
		}
	}
	return found, nil
}

// Of is the control group of a lease's container, or "" where the lease
// names something else.
func Of(l gpu.Lease) string {
	if strings.TrimSuffix(filepath.Base(l.Cgroup), ".scope") != l.Container {
		return ""
	}
	return l.Cgroup
}

// Tree returns the directories of a control group and of those below it,
// each before its content.
func Tree(path string, unified bool) ([]string, error) {
	dirs, err := Dirs(path, unified)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() {
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("look into control group: %w", err)
		}
	}
	return all, nil
}

// Unified reports whether the node has cgroup v2 alone.
func Unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// SwapAccounting reports whether the kernel can limit swap.
func SwapAccounting() bool {
	_, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
	return err == nil || Unified()
}

// Dir is the directory of a control group.
func Dir(path string) (string, error) {
	dirs, err := Dirs(path, Unified())
	if err != nil {
		return "", err
	}
	if len(dirs) == 0 {
		return "", fmt.Errorf("the control group %s is not there", path)
	}
	return dirs[0], nil
}
