// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A control group that cannot be looked into does not count as empty, whoever looks.
func TestGroupsThatCannotBeLookedInto(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	cgroupstest.Fill(t, dir, map[string]string{"cgroup.procs": "many"})
	const says = "list processes of control group"
	d, env, fake, _ := besideFake(t)
	said := hear(d)
	lease := gpu.Lease{ID: "of the group", Container: "box", Cgroup: path, Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 3}}}
	must.NoError(t, env.state.WriteLease(lease))
	one := known(d, env, lease)
	one.record.Lease.Cgroup = path

	_, err := (&seatHost{driver: d, uuid: gpuA}).Processes(lease.ID)
	must.ErrorContains(t, err, says)
	must.ErrorContains(t, d.killWithoutContainerd(one), says)
	must.False(t, one.exited())

	plan := &startPlan{env: env, share: spec.Share{OneUser: true, Holdings: lease.Holdings}}
	admit := func() error {
		return plan.oneUser(t.Context(), nil, nil, &specs.Spec{Process: &specs.Process{User: specs.User{UID: 7}}})
	}
	must.ErrorContains(t, admit(), says)
	pipe := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(pipe, "control"), []byte("#!/bin/sh\nread asked\ncase $asked in get_server_list) echo 100;; get_client_list*) echo 200;; esac\n"), 0o700))
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Control: filepath.Join(pipe, "control"), PipeDir: filepath.Join(pipe, "pipe")}}))
	must.ErrorContains(t, d.terminateClients(one), says)

	// A task whose group cannot be emptied keeps its lease.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	d.ended(over, one, runtime.Exit{}, nil)
	must.False(t, one.exited())
	must.StrContains(t, said(), "an ended task keeps its lease until all its processes have ended: container=box")
	now, err := env.state.Lease(lease.ID)
	must.NoError(t, err)
	must.True(t, now.Live())

	// And one whose container is gone is not removed in part.
	c := env.runtime.Unloaded("box", "image", fake.containers["box"].Labels, one.record.Encode())
	must.ErrorContains(t, d.removeWithLease(c), says)
	must.Eq(t, []string{"box"}, fake.holds())
	must.NoError(t, os.Remove(filepath.Join(dir, "cgroup.procs")))
	must.NoError(t, admit())
	must.NoError(t, d.terminateClients(one))
	must.NoError(t, d.removeWithLease(c))
	must.SliceEmpty(t, fake.holds())
	must.DirNotExists(t, dir)
	spoil(t, env, "leases")
	must.Error(t, admit(), must.Sprint("who is on the server is not known"))
}

// The cores of a task are those that Nomad shares, or the operator is told.
func TestCoresThatCannotBeSet(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	d, env := alone(t)
	said := hear(d)
	one := known(d, env, gpu.Lease{})
	one.record.Lease.Cgroup = path
	one.sharedCores = t.TempDir()
	cgroupstest.Fill(t, one.sharedCores, map[string]string{"cpuset.effective_cpus": "0-3\n", "cpuset.cpus.effective": "0-3\n"})
	must.NoError(t, os.Mkdir(filepath.Join(dir, "cpuset.cpus"), 0o700))
	d.followCores(one)
	must.StrContains(t, said(), "a task may still run on cores that others have reserved: ")
	must.Eq(t, "", one.coresSeen)
	must.NoError(t, os.Remove(filepath.Join(dir, "cpuset.cpus")))
	cgroupstest.Fill(t, dir, map[string]string{"cpuset.cpus": ""})
	d.followCores(one)
	must.Eq(t, "0-3", one.coresSeen)
	text, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus"))
	must.NoError(t, err)
	must.Eq(t, "0-3", string(text))
}

// The limit of a task's GPU memory is set on its control group, which has to be there.
func TestGroupsThatAreHeldToGPUMemory(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	noted := filepath.Join(t.TempDir(), "noted")
	command := []string{"/bin/sh", "-c", `echo "$0 $@" >> ` + noted}
	before := gpu.Holding{UUID: gpuA, Share: gpu.Share{MemoryMiB: 1024}}
	lease := gpu.Lease{Container: "box", Cgroup: path, Holdings: []gpu.Holding{{UUID: gpuA, Share: gpu.Share{MemoryMiB: 2048, MemoryLimitMiB: 4096}}}}
	must.NoError(t, limitNow(t.Context(), lease, gpu.GPUState{Limiter: &gpu.MemoryLimiter{Command: command}}, before))
	p := &startPlan{record: record.Record{Lease: lease}, share: spec.Share{MemoryLimits: []spec.MemoryLimit{{UUID: gpuA, Command: command, GuaranteeMiB: 1, LimitMiB: 2}}}}
	must.NoError(t, p.limitMemory(t.Context()))
	text, err := os.ReadFile(noted)
	must.NoError(t, err)
	said := lines(string(text))
	must.Len(t, 2, said)
	must.StrHasSuffix(t, path+" 2048 4096", said[0])
	must.StrHasSuffix(t, path+" 1 2", said[1])
	must.True(t, strings.HasPrefix(said[0], gpuA+" "+cgroups.Root))
	failing := gpu.GPUState{Limiter: &gpu.MemoryLimiter{Command: []string{"/bin/false"}}}
	must.ErrorContains(t, limitNow(t.Context(), lease, failing, before), "exit status 1")
	must.NoError(t, os.Remove(dir))
	must.ErrorContains(t, p.limitMemory(t.Context()), "is not there")
}
