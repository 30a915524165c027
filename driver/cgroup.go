package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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
// hierarchy of cgroup v1. The root, or a name that nobody gave, has none: what is
// done to a container's group must never be done to everything.
func cgroupDirs(path string, unified bool) []string {
	if strings.Count(filepath.Clean(path), "/") < 2 {
		return nil
	}
	hierarchies := cgroupRoot + "/*"
	if unified {
		hierarchies = cgroupRoot
	}
	found, _ := filepath.Glob(hierarchies + path) // the pattern is valid
	return found
}

// cgroupEnds is how long processes that were killed may take to leave their
// control group.
const cgroupEnds = 10 * time.Second

// removeCgroup kills what is left in the control group of a container that is
// gone, and removes it with those that its processes made below. The container
// runtime does that, unless it is killed before it comes to it.
func removeCgroup(path string, unified bool) error {
	for deadline := time.Now().Add(cgroupEnds); ; time.Sleep(10 * time.Millisecond) {
		dirs, err := cgroupTree(path, unified)
		if err != nil {
			return err
		}
		err = removeDirs(dirs)
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		if _, err := killCgroup(path, unified); err != nil {
			return err
		}
	}
}

// cgroupTree returns the directories of a control group and of those below it,
// each before what is in it.
func cgroupTree(path string, unified bool) ([]string, error) {
	var all []string
	for _, dir := range cgroupDirs(path, unified) {
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

// killCgroup kills the processes in a container's control group, and returns how
// many there were. None of it may exist.
func killCgroup(path string, unified bool) (int, error) {
	dirs, err := cgroupTree(path, unified)
	if err != nil {
		return 0, err
	}
	killed := map[int]bool{}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // removed meanwhile
		}
		if err != nil {
			return len(killed), fmt.Errorf("list processes of control group: %w", err)
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid <= 0 || killed[pid] {
				continue // 0 is a process of another PID namespace
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return len(killed), fmt.Errorf("kill process %d of control group %s: %w", pid, dir, err)
			}
			killed[pid] = true
		}
	}
	return len(killed), nil
}
