package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// cgroupRoot is where Linux distributions mount control groups.
const cgroupRoot = "/sys/fs/cgroup"

// cgroupPath is where a container's control group is made, below the mount. On
// cgroup v2 it lies where Nomad keeps such tasks, and so under the client's
// cgroup_parent, and its name ends as theirs do. On v1 it lies apart: Nomad could
// not take shared cores back from a group that has others in it.
func cgroupPath(namespace, id string, r *drivers.Resources, unified bool) string {
	if !unified {
		return "/" + namespace + "/" + id
	}
	parent := strings.TrimPrefix(partitionDir(r, unified), cgroupRoot)
	if parent == "" {
		parent = "/" + namespace
	}
	return parent + "/" + id + ".scope"
}

// cgroupOfContainer is where the control group of a container is, and of one
// without a readable record where it would be that Nomad gave no place.
func cgroupOfContainer(namespace string, c *runtime.Container) string {
	if r, err := recordOf(c); err == nil {
		if path := cgroupOf(r.Lease); path != "" {
			return path
		}
	}
	return cgroupPath(namespace, c.ID, nil, unified())
}

// cgroupDirs are the directories that a control group has: one, or one per
// hierarchy of cgroup v1. The root, or an empty name, has none: what is
// done to a container's group must never be done to everything.
// Where a group cannot be looked for there is an error: it may not be gone.
func cgroupDirs(path string, unified bool) ([]string, error) {
	return dirsBelow(cgroupRoot, path, unified)
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

// cgroupOf is the control group of a lease's container, or "" where the lease
// names something else.
func cgroupOf(l gpu.Lease) string {
	if strings.TrimSuffix(filepath.Base(l.Cgroup), ".scope") != l.Container {
		return ""
	}
	return l.Cgroup
}

// cgroupPatience is how long processes that were killed may take to end. One that
// waits for a GPU's driver may take for ever.
const cgroupPatience = 10 * time.Second

// cgroupPause is between two looks at a control group.
const cgroupPause = 10 * time.Millisecond

// errStillRuns means that processes of a container do not end.
var errStillRuns = errors.New("processes do not end after SIGKILL")

// removeCgroup empties the control group of a container that is gone, and removes
// it with those that its processes made below. The container runtime does that,
// unless it is killed before it comes to it.
func removeCgroup(ctx context.Context, path string, unified bool) error {
	for deadline := time.Now().Add(cgroupPatience); ; {
		if err := emptyCgroup(ctx, path, unified); err != nil {
			return err
		}
		dirs, err := cgroupTree(path, unified)
		if err != nil {
			return err
		}
		err = removeDirs(dirs)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %w", errStillRuns, err)
		}
		if !pause(ctx, cgroupPause) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// emptyCgroup kills what is left in the control group of a container that is gone,
// and waits until it has ended. A group that does not exist is empty. It returns
// errStillRuns for processes that do not end.
func emptyCgroup(ctx context.Context, path string, unified bool) error {
	for deadline := time.Now().Add(cgroupPatience); ; {
		dirs, err := cgroupTree(path, unified)
		if err != nil {
			return err
		}
		pids, err := processesIn(dirs)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("control group %s: %w: %v", path, errStillRuns, pids)
		}
		if err := killIn(dirs, pids); err != nil {
			return err
		}
		if !pause(ctx, cgroupPause) {
			return fmt.Errorf("control group %s: wait for the end of processes %v: %w", path, pids, ctx.Err())
		}
	}
}

// cgroupTree returns the directories of a control group and of those below it,
// each before what is in it.
func cgroupTree(path string, unified bool) ([]string, error) {
	dirs, err := cgroupDirs(path, unified)
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

func removeDirs(dirs []string) error {
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
	return nil
}

// processesIn lists the processes in control groups. One of another PID namespace
// is 0.
func processesIn(dirs []string) ([]int, error) {
	var pids []int
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // removed meanwhile, or of threads, whose process the group above lists
		}
		if err != nil {
			return nil, fmt.Errorf("list processes of control group: %w", err)
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("list processes of control group %s: %w", dir, err)
			}
			if !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// killIn kills the processes in control groups: by the kernel's own means where it
// has them (cgroup v2 since Linux 5.14), else one by one, and thawed.
func killIn(dirs []string, pids []int) error {
	for _, dir := range dirs {
		killed, err := writeControl(filepath.Join(dir, "cgroup.kill"), "1")
		if killed || err != nil {
			return err // the groups below it too
		}
		if _, err := writeControl(filepath.Join(dir, "freezer.state"), "THAWED"); err != nil {
			return err
		}
	}
	held := map[int]*os.Process{}
	for _, pid := range pids {
		if process, err := os.FindProcess(pid); err == nil && pid != 0 {
			held[pid] = process
			defer func() { _ = process.Release() }()
		}
	}
	// What is still there now is what is held, and no other of the same number.
	still, err := processesIn(dirs)
	if err != nil {
		return err
	}
	for _, pid := range still {
		if process := held[pid]; process != nil {
			if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// writeControl writes to a file of a control group, if the kernel offers it.
func writeControl(path, value string) (offered bool, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(value)
		err = errors.Join(err, file.Close())
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return err == nil, err
}
