// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// named makes a task of a name that a driver watches, without a container that runs.
func named(d *Driver, env environment, name string, l gpu.Lease) *task {
	l.ID, l.Container = name, "box-"+name
	_, t := d.newTask(&drivers.TaskConfig{ID: name, Name: name}, env.runtime.Unloaded(l.Container, "image", nil, nil), record.Record{Lease: l})
	return t
}

// inGroup makes a control group of a fake one, with these processes in it.
func inGroup(t *testing.T, path, dir, name string, pids ...int) string {
	t.Helper()
	text := ""
	for _, pid := range pids {
		text += itoa(pid) + "\n"
	}
	must.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	cgroupstest.Fill(t, filepath.Join(dir, name), map[string]string{"cgroup.procs": text})
	return path + "/" + name
}

// All clients of a task are terminated, on all servers of its daemon, and none of another's.
func TestEveryClientOfATaskIsTerminated(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	d, env := alone(t)
	said := hear(d)
	group := inGroup(t, path, dir, "box-mine", 201, 203, 302)
	pipe := t.TempDir()
	control, asked := filepath.Join(pipe, "control"), filepath.Join(pipe, "asked")
	answers := func(rest string) {
		t.Helper()
		_ = os.Remove(asked)
		must.NoError(t, os.WriteFile(control, []byte("#!/bin/sh\nread asked\ncase $asked in\nget_server_list) echo 100; echo 101;;\n"+rest+"\nget_client_list*100) echo 201; echo 202; echo 203;;\nget_client_list*101) echo 301; echo 302;;\n*) echo $asked >> "+asked+";;\nesac\n"), 0o700))
	}
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 1, Control: control, PipeDir: filepath.Join(pipe, "pipe")}}))
	mine := named(d, env, "mine", gpu.Lease{Phase: gpu.PhaseRunning, Cgroup: group, Holdings: []gpu.Holding{{UUID: gpuB}, {UUID: gpuA, MPSGeneration: 1}}})
	answers("")
	must.NoError(t, d.terminateClients(mine))
	text, err := os.ReadFile(asked)
	must.NoError(t, err)
	must.Eq(t, []string{"terminate_client 100 201", "terminate_client 100 203", "terminate_client 101 302"}, lines(string(text)))
	for _, pid := range []int{201, 203, 302} {
		must.StrContains(t, said(), fmt.Sprintf("terminating MPS client: container=box-mine task_id=mine gpu=%s pid=%d", gpuA, pid))
	}
	// One that fails keeps none of the others from being asked for.
	for _, failing := range []string{"get_client_list*100) exit 7;;", "terminate_client*201) exit 7;;"} {
		answers(failing)
		must.ErrorContains(t, d.terminateClients(mine), "exit status 7")
		text, err := os.ReadFile(asked)
		must.NoError(t, err)
		must.SliceContains(t, lines(string(text)), "terminate_client 101 302")
	}
	answers("get_server_list) exit 7;;")
	must.NoError(t, os.WriteFile(control, []byte("#!/bin/sh\nexit 7\n"), 0o700))
	must.ErrorContains(t, d.terminateClients(mine), "exit status 7")
}

// Who runs on an MPS server as another user is found among all tasks on it, wherever they
// stand among the leases and their processes, and only there.
func TestUsersOfAServer(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	_, env := alone(t)
	self := os.Getpid() // of the user who runs the tests
	onServer := []gpu.Holding{{UUID: gpuB, MPSGeneration: 1}, {UUID: gpuA, MPSGeneration: 3}}
	plan := &startPlan{env: env, record: record.Record{Lease: gpu.Lease{ID: "mine"}}, share: spec.Share{OneUser: true, Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 3}}}}
	admit := func(uid uint32) error {
		return plan.oneUser(t.Context(), nil, nil, &specs.Spec{Process: &specs.Process{User: specs.User{UID: uid}}})
	}
	own := uint32(os.Getuid())
	empty := inGroup(t, path, dir, "box-empty")
	for name, row := range map[string]struct {
		lease   gpu.Lease
		pids    []int
		refused bool
	}{
		"its process alone":    {gpu.Lease{Holdings: onServer}, []int{self}, true},
		"the last process":     {gpu.Lease{Holdings: onServer}, []int{noProcess, self}, true},
		"the first process":    {gpu.Lease{Holdings: onServer}, []int{self, noProcess}, true},
		"no process":           {gpu.Lease{Holdings: onServer}, nil, false},
		"one that has ended":   {gpu.Lease{Holdings: onServer}, []int{noProcess}, false},
		"an ended task":        {gpu.Lease{Phase: gpu.PhaseEnded, Holdings: onServer}, []int{self}, false},
		"on another GPU":       {gpu.Lease{Holdings: []gpu.Holding{{UUID: gpuB, MPSGeneration: 3}}}, []int{self}, false},
		"of an earlier daemon": {gpu.Lease{Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 2}}}, []int{self}, false},
	} {
		for _, id := range []string{"a", "z"} { // before and after another lease
			if row.lease.Phase == "" {
				row.lease.Phase = gpu.PhaseRunning
			}
			row.lease.ID, row.lease.Container, row.lease.Cgroup = id, "box", inGroup(t, path, dir, "box", row.pids...)
			must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "m", Container: "box-empty", Cgroup: empty, Phase: gpu.PhaseRunning, Holdings: onServer}))
			must.NoError(t, env.state.WriteLease(row.lease))
			must.NoError(t, admit(own), must.Sprint(name))
			err := admit(own + 7)
			must.Eq(t, row.refused, err != nil, must.Sprint(name, id))
			if row.refused {
				must.ErrorContains(t, err, fmt.Sprintf("task %s runs there as user %d, and this one is for user %d", id, own, own+7))
			}
			must.NoError(t, env.state.RemoveLease(id))
		}
	}
	// Its own lease of before, and a server that takes all users keep out none.
	must.NoError(t, env.state.WriteLease(gpu.Lease{ID: "mine", Container: "box", Cgroup: inGroup(t, path, dir, "box", self), Phase: gpu.PhaseRunning, Holdings: onServer}))
	must.NoError(t, admit(own+7))
	plan.record.Lease.ID = "next"
	must.Error(t, admit(own+7))
	plan.share.OneUser = false
	must.NoError(t, admit(own+7))
}

// Of a kill that went around MPS those hear who were on the same server, and no others.
func TestNeighborsOfAKilledTask(t *testing.T) {
	d, env := alone(t)
	tells := listener(t, d)
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Control: "/bin/false"}}))
	lease := func(holdings ...gpu.Holding) gpu.Lease {
		return gpu.Lease{Phase: gpu.PhaseRunning, Holdings: holdings}
	}
	on := gpu.Holding{UUID: gpuA, MPSGeneration: 3}
	killed := named(d, env, "killed", lease(on))
	for _, name := range []string{"n1", "n2", "n3"} {
		named(d, env, name, lease(on, gpu.Holding{UUID: gpuB}))
	}
	named(d, env, "n4", lease(gpu.Holding{UUID: gpuB}, on))
	named(d, env, "ended", lease(on)).finish(runtime.Exit{}, nil)
	named(d, env, "elsewhere", lease(gpu.Holding{UUID: gpuB, MPSGeneration: 3}))
	named(d, env, "earlier", lease(gpu.Holding{UUID: gpuA, MPSGeneration: 2}))
	alone := named(d, env, "alone", lease(gpu.Holding{UUID: gpuB}))
	var told []string
	for _, event := range tells(func() { d.tellNeighbors(alone, "nothing"); d.tellNeighbors(killed, "why") }) {
		told = append(told, event.TaskID)
		must.StrHasPrefix(t, "GPU "+gpuA+": another task on its MPS server was killed and could not be terminated by MPS first (why); ", event.Message)
		must.Eq(t, map[string]string{"gpu": gpuA, "fault": codeKilledNeighbor}, event.Annotations)
	}
	slices.Sort(told)
	must.Eq(t, []string{"n1", "n2", "n3", "n4"}, told)
}

// Each task is shown the daemon that each of its GPUs has now.
func TestTasksFollowTheirDaemons(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	d, env := alone(t)
	said := hear(d)
	pipes := pipes(env.settings)
	daemon := func() string {
		dir := t.TempDir()
		cgroupstest.Fill(t, dir, map[string]string{spec.PipeNames[0]: ""})
		return dir
	}
	next := daemon()
	var tasks []*task
	for _, name := range []string{"one", "two", "three"} {
		tasks = append(tasks, named(d, env, name, gpu.Lease{Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 1}, {UUID: gpuB}}}))
		t.Cleanup(func() { must.NoError(t, pipes.Remove(context.Background(), "box-"+name)) })
		_, err := pipes.Create("box-"+name, daemon())
		must.NoError(t, err)
	}
	tasks = append(tasks, named(d, env, "without", gpu.Lease{Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA}}}))
	const changed = "the task sees its GPU's new MPS daemon"
	for _, state := range []gpu.GPUState{{UUID: gpuA}, {UUID: gpuA, MPS: &gpu.MPSState{Generation: 2, PipeDir: next}}} {
		d.followDaemons(env, tasks) // there is none that is ready
		must.NoError(t, env.state.WriteGPU(state))
		d.followDaemons(env, tasks)
		must.Eq(t, "", said())
	}
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 2, Ready: true, PipeDir: next}}))
	for range 2 { // the second time there is nothing to do
		d.followDaemons(env, tasks)
		must.Eq(t, 3, strings.Count(said(), changed))
		must.Eq(t, 3, strings.Count(said(), "\n"))
	}
	for _, name := range []string{"one", "two", "three"} {
		must.StrContains(t, said(), changed+": container=box-"+name)
	}
	tasks[0].record.Lease.Holdings = []gpu.Holding{{UUID: gpuB}, {UUID: gpuA, MPSGeneration: 1}}
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Ready: true, PipeDir: daemon()}}))
	d.followDaemons(env, tasks[:1])
	must.Eq(t, 4, strings.Count(said(), changed))

	// What a task of another driver puts in the place of the gate's files is shown to no other.
	gate := daemon()
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, MPS: &gpu.MPSState{Generation: 3, Ready: true, PipeDir: daemon(), GateDir: gate}}))
	d.followDaemons(env, tasks[:1])
	shown, err := os.Stat(filepath.Join(env.settings.StateDir, "pipes", "box-one", "pipe", spec.PipeNames[0]))
	must.NoError(t, err)
	own, err := os.Stat(filepath.Join(gate, spec.PipeNames[0]))
	must.NoError(t, err)
	must.True(t, os.SameFile(shown, own))
}

// Before its control group goes, what a task was guaranteed of a part of a GPU's memory is
// given back, of each GPU of which that was set.
func TestGuaranteedMemoryIsGivenBack(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	d, env := alone(t)
	said := hear(d)
	noted := filepath.Join(t.TempDir(), "noted")
	limiter := &gpu.MemoryLimiter{Command: []string{"/bin/sh", "-c", `echo "$@" >> ` + noted, "limiter"}}
	const gpuC, gpuD = "GPU-c", "GPU-d"
	for _, s := range []gpu.GPUState{{UUID: gpuA, Slices: 4, Limiter: limiter}, {UUID: gpuB, Slices: 4}, {UUID: gpuD, Slices: 4, Limiter: limiter}} {
		must.NoError(t, env.state.WriteGPU(s))
	}
	part := gpu.Share{MemoryMiB: 1024, MemoryLimitMiB: 2048}
	lease := gpu.Lease{Container: "box", Cgroup: path}
	release := func(holdings ...gpu.Holding) []string {
		t.Helper()
		_ = os.Remove(noted)
		lease.Holdings = holdings
		d.releaseMemory(t.Context(), env, env.runtime.Unloaded("box", "", nil, record.Record{Lease: lease}.Encode()))
		text, _ := os.ReadFile(noted)
		return lines(string(text))
	}
	group, err := cgroups.Dir(path)
	must.NoError(t, err)
	must.StrHasSuffix(t, path, group)
	back := func(uuid string, most int) string { return fmt.Sprintf("%s %s 0 %d", uuid, group, most) }
	must.Eq(t, []string{back(gpuA, 2048), back(gpuD, 2048)}, release(
		gpu.Holding{UUID: gpuA, Slices: []int{0}, Share: part},
		gpu.Holding{UUID: gpuB, Slices: []int{0}, Share: part},
		gpu.Holding{UUID: gpuC, Slices: []int{0}, Share: part},
		gpu.Holding{UUID: gpuA, Slices: []int{0}},
		gpu.Holding{UUID: gpuA, Share: part},
		gpu.Holding{UUID: gpuA, Slices: []int{0, 1, 2, 3}, Share: part},
		gpu.Holding{UUID: gpuD, Slices: []int{0, 1, 2}, Share: part},
	))
	must.Eq(t, []string{back(gpuA, 1)}, release(gpu.Holding{UUID: gpuA, Slices: []int{0}, Share: gpu.Share{MemoryMiB: 1}}))
	must.Eq(t, "", said())
	must.NoError(t, env.state.WriteGPU(gpu.GPUState{UUID: gpuA, Slices: 4, Limiter: &gpu.MemoryLimiter{Command: []string{"/bin/false"}}}))
	release(gpu.Holding{UUID: gpuA, Slices: []int{0}, Share: part})
	must.StrContains(t, said(), "the memory that a task was guaranteed stays reserved in the control groups above its own: container=box gpu="+gpuA)
	d.releaseMemory(t.Context(), env, env.runtime.Unloaded("box", "", nil, []byte("{")))
	must.NoError(t, os.Remove(dir))
	must.Eq(t, []string{""}, release(gpu.Holding{UUID: gpuD, Slices: []int{0}, Share: part}))
	must.Eq(t, 1, strings.Count(said(), "\n"))
}
