// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/client/lib/idset"
	"github.com/hashicorp/nomad/client/lib/numalib/hw"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// nomadCores is Nomad's own management of cores, as its client does it, in
// control groups of the test's own.
type nomadCores struct {
	t         *testing.T
	partition cgroupslib.Partition
}

func newNomadCores(t *testing.T) *nomadCores {
	t.Helper()
	root := filepath.Join(cgroups.Root, "cpuset")
	if cgroups.Unified() {
		root = cgroups.Root
	}
	usable, err := cgroups.SharedCPUs(root, cgroups.Unified())
	must.NoError(t, err)
	cpus, err := taskconfig.ParseCPUs(usable)
	must.NoError(t, err)
	if !cpus[0] || !cpus[1] {
		t.Skipf("the machine's CPUs are %s, and the test needs 0 and 1", usable)
	}
	before := cgroupslib.NomadCgroupParent
	cgroupslib.NomadCgroupParent = fmt.Sprintf("/nomad-test-%d.slice", os.Getpid())
	t.Cleanup(func() {
		removeTree(t, cgroupslib.NomadCgroupParent)
		cgroupslib.NomadCgroupParent = before
	})
	must.NoError(t, cgroupslib.Init(hclog.NewNullLogger(), "0-1"))
	cores := &nomadCores{t: t, partition: cgroupslib.NewPartition(hclog.NewNullLogger(), coreSet(0, 1))}
	must.NoError(t, cores.partition.Reserve(coreSet()))
	return cores
}

func coreSet(ids ...hw.CoreID) *idset.Set[hw.CoreID] { return idset.From[hw.CoreID](ids) }

// removeTree removes control groups that hold no process any more.
func removeTree(t *testing.T, path string) {
	t.Helper()
	hierarchies := []string{filepath.Join(cgroups.Root, path)}
	if !cgroups.Unified() {
		hierarchies, _ = filepath.Glob(filepath.Join(cgroups.Root, "*", path))
	}
	for _, dir := range hierarchies {
		eventually(t, "no process is left in "+dir, func() bool {
			var dirs []string
			must.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			}))
			for _, dir := range slices.Backward(dirs) {
				if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
					return false
				}
			}
			return true
		})
	}
}

// place does to a task what Nomad's client does before it asks the driver.
func (n *nomadCores) place(cores ...string) func(*drivers.TaskConfig) {
	return func(cfg *drivers.TaskConfig) {
		group := cgroupslib.Factory(cfg.AllocID, cfg.Name, len(cores) > 0)
		must.NoError(n.t, group.Setup())
		cfg.Resources.LinuxResources.CpusetCpus = strings.Join(cores, ",")
		cfg.Resources.LinuxResources.CpusetCgroupPath = cgroupslib.LinuxResourcesPath(cfg.AllocID, cfg.Name, len(cores) > 0)
	}
}

// cores are those that a running task may use.
func (e *env) cores(cfg *drivers.TaskConfig) string {
	e.t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", itoa(e.pid(cfg)), "status"))
	must.NoError(e.t, err)
	for _, line := range lines(string(status)) {
		if list, found := strings.CutPrefix(line, "Cpus_allowed_list:\t"); found {
			return list
		}
	}
	e.t.Fatal("the kernel does not say which CPUs a process may use")
	return ""
}

// Cores that Nomad reserves for one task are that task's alone, from the moment of the
// reservation to its end.
func TestReservedCoresAreExclusive(t *testing.T) {
	forEachContainerdAlone(t, func(t *testing.T, e *env) {
		nomad := newNomadCores(t)
		plain := e.quietTask(defaultTaskConfig("sleep", "1000"), nomad.place())
		handle := e.start(plain)
		choosy := defaultTaskConfig("sleep", "1000")
		choosy.CPUSetCPUs = "1"
		chosen := e.quietTask(choosy, nomad.place())
		e.start(chosen)
		must.Eq(t, "0-1", e.cores(plain))
		must.Eq(t, "1", e.cores(chosen))

		must.NoError(t, nomad.partition.Reserve(coreSet(1)))
		owner := e.quietTask(defaultTaskConfig("sleep", "1000"), nomad.place("1"))
		e.start(owner)
		must.Eq(t, "1", e.cores(owner))
		eventually(t, "the others leave the reserved core", func() bool { return e.cores(plain) == "0" && e.cores(chosen) == "0" })

		// One that comes now does not get there, and a session in one neither.
		late := e.quietTask(defaultTaskConfig("sleep", "1000"), nomad.place())
		e.start(late)
		must.Eq(t, "0", e.cores(late))
		session, err := e.harness.ExecTask(plain.ID, []string{"sh", "-c", "grep Cpus_allowed_list /proc/self/status"}, patience)
		must.NoError(t, err)
		must.StrContains(t, string(session.Stdout), "\t0\n")
		_, _, err = e.harness.StartTask(e.quietTask(choosy, nomad.place()))
		must.ErrorContains(t, err, `cpuset_cpus "1": none of them is shared now`)
		must.True(t, structs.IsRecoverable(err))
		both := defaultTaskConfig("true")
		both.CPUSetCPUs = "0"
		_, _, err = e.harness.StartTask(e.quietTask(both, nomad.place("1")))
		must.ErrorContains(t, err, `cpuset_cpus "0" contradicts the task's cores`)

		// A driver that was away while cores changed hands catches up. Nomad gives a task's
		// cores to others once it has ended, and on v2 the kernel sees to that.
		e.end(owner)
		e.driver.Shutdown()
		must.NoError(t, nomad.partition.Release(coreSet(1)))
		must.NoError(t, nomad.partition.Reserve(coreSet(0)))
		e.startDriver()
		must.NoError(t, e.harness.RecoverTask(handle))
		eventually(t, "a task that was recovered follows", func() bool { return e.cores(plain) == "1" })

		must.NoError(t, nomad.partition.Release(coreSet(0)))
		eventually(t, "what was reserved is shared again", func() bool { return e.cores(plain) == "0-1" })
		for _, cfg := range []*drivers.TaskConfig{plain, chosen, late} {
			e.end(cfg)
		}
	})
}
