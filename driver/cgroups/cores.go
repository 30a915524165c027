// SPDX-License-Identifier: MPL-2.0

package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Nomad divides the node's cores into those that tasks have reserved with cores,
// and those that all others share. It keeps both in control groups of its own,
// and names the one of a task in its resources:
//
//	v1  /sys/fs/cgroup/cpuset/nomad/share, /sys/fs/cgroup/cpuset/nomad/reserve/<alloc>.<task>
//	v2  /sys/fs/cgroup/nomad.slice/{share,reserve}.slice/<alloc>.<task>.scope
//
// On v2 a container's control group is made beside that of its task, and the
// kernel keeps it to the cores of the group above. On v1 that cannot be done: a
// group with another one in it cannot give cores up. There the driver copies the
// shared cores into each container that lives on them, whenever they change.

// partitionDir is the directory of the control group in which Nomad keeps tasks
// such as this one, "" where Nomad names none.
func partitionDir(r *drivers.Resources, unified bool) string {
	if r == nil || r.LinuxResources == nil {
		return ""
	}
	dir := filepath.Clean(r.LinuxResources.CpusetCgroupPath)
	if !strings.HasPrefix(dir, Root+"/") {
		return ""
	}
	if unified || r.LinuxResources.CpusetCpus != "" {
		dir = filepath.Dir(dir) // the group of the one task
	}
	return dir
}

// SharedCPUs reads the cores that tasks without cores of their own may use, ""
// where Nomad has not said.
func SharedCPUs(dir string, unified bool) (string, error) {
	file := "cpuset.effective_cpus"
	if unified {
		file = "cpuset.cpus.effective"
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil // of a client that does not manage cores
	}
	return strings.TrimSpace(string(text)), err
}

// CPUs returns the cores that a container's control group is given: those that
// the task has reserved, or those of the shared ones that its author names. It is
// "" where the kernel does it.
func CPUs(r *drivers.Resources, wanted string, unified bool) (string, error) {
	if r == nil || r.LinuxResources == nil {
		return wanted, nil
	}
	if own := r.LinuxResources.CpusetCpus; own != "" {
		if wanted != "" {
			return "", fmt.Errorf("cpuset_cpus %q contradicts the task's cores, for which Nomad has reserved %s; remove one of them", wanted, own)
		}
		return own, nil
	}
	dir := partitionDir(r, unified)
	if dir == "" {
		return wanted, nil
	}
	shared, err := SharedCPUs(dir, unified)
	if err != nil {
		return "", fmt.Errorf("read the node's shared cores: %w", err)
	}
	if shared == "" {
		return wanted, nil
	}
	cpus, kept, err := taskconfig.CPUsWithin(wanted, shared)
	switch {
	case err != nil:
		return "", fmt.Errorf("cpuset_cpus: %w", err)
	case !kept:
		return "", structs.NewRecoverableError(fmt.Errorf("cpuset_cpus %q: none of them is shared now; tasks without cores may use %s, the others are reserved", wanted, shared), true)
	case unified:
		return wanted, nil // the group above keeps it to the shared cores
	}
	return cpus, nil
}

// Follows returns the directory whose cores a task has to be kept to by the
// driver: "" for one with cores of its own, and one that the kernel keeps there.
func Follows(cfg *drivers.TaskConfig, cgroup string, unified bool) string {
	dir := partitionDir(cfg.Resources, unified)
	if dir == "" || cfg.Resources.LinuxResources.CpusetCpus != "" || strings.HasPrefix(Root+cgroup, dir+"/") {
		return ""
	}
	return dir
}

// WriteCPUs sets the cores of a control group. One that is gone needs none, and of
// a container's groups on v1 one has them.
func WriteCPUs(cgroup, cpus string, unified bool) error {
	dirs, err := Dirs(cgroup, unified)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := Write(filepath.Join(dir, "cpuset.cpus"), cpus); err != nil {
			return err
		}
	}
	return nil
}
