// SPDX-License-Identifier: MPL-2.0

package subcommand

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// checkpointRig asks the command as the task driver does, on a simulated H100 with tasks
// of 30 GiB in processes 1 and 2, and of 40 GiB in process 3.
type checkpointRig struct {
	t         *testing.T
	dir, uuid string
	driver    string
}

func newCheckpointRig(t *testing.T, branch string) checkpointRig {
	t.Helper()
	r := checkpointRig{t: t, dir: t.TempDir()}
	topology := filepath.Join(r.dir, "machine.hcl")
	text := "machine \"m\" { driver = \"" + branch + "\" }\ngpu { model = \"H100\" }\n"
	if err := os.WriteFile(topology, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.uuid = must(sim.ReadTopology(topology, "")).UUID(0)
	config := driverConfig{BootID: "boot", Simulation: &config.Simulation{Topology: topology, Dir: r.dir}}
	r.driver = string(must(json.Marshal(config)))
	r.condition(func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: 4200001, MemoryMiB: 20 << 10}, {PID: 4200002, MemoryMiB: 10 << 10}, {PID: 4200003, MemoryMiB: 40 << 10}}
	})
	return r
}

var firstTask, secondTask = []int{4200001, 4200002, 4200009}, []int{4200003}

func (r checkpointRig) condition(change func(*sim.Condition)) {
	r.t.Helper()
	if err := sim.Update(r.dir, r.uuid, change); err != nil {
		r.t.Fatal(err)
	}
}

func (r checkpointRig) ask(q gpu.CheckpointRequest) gpu.CheckpointAnswer {
	r.t.Helper()
	q.UUID, q.Version = r.uuid, gpu.StateVersion
	var out bytes.Buffer
	if err := RunCheckpoint([]string{r.driver}, bytes.NewReader(must(json.Marshal(q))), &out); err != nil {
		r.t.Fatal(err)
	}
	var a gpu.CheckpointAnswer
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		r.t.Fatal(err)
	}
	return a
}

// wants checks the states of the processes that use CUDA, in their order.
func (r checkpointRig) wants(a gpu.CheckpointAnswer, failure gpu.CheckpointFailure, states ...gpu.CheckpointState) {
	r.t.Helper()
	if a.Failure != failure || len(a.Processes) != len(states) {
		r.t.Fatalf("got %+v", a)
	}
	for n, p := range a.Processes {
		if p.State != states[n] {
			r.t.Fatalf("got %+v", a)
		}
	}
}

const (
	running, locked, checkpointed = gpu.ProcessRunning, gpu.ProcessLocked, gpu.ProcessCheckpointed
)

// A task leaves the GPU, its room is another's, and it comes back when there is room:
// not before, and beside neighbors that go on afterwards.
func TestProcessesLeaveTheGPUAndComeBack(t *testing.T) {
	r := newCheckpointRig(t, "580.82.07")
	a := r.ask(gpu.CheckpointRequest{Action: gpu.CheckpointSuspend, PIDs: firstTask})
	r.wants(a, "", checkpointed, checkpointed)
	if a.HeldMiB != 30<<10 {
		t.Errorf("it held %d MiB", a.HeldMiB)
	}
	r.condition(func(c *sim.Condition) { c.Processes[2].MemoryMiB = 60 << 10 })
	resume := gpu.CheckpointRequest{Action: gpu.CheckpointResume, PIDs: firstTask, Beside: secondTask, RoomMiB: 30 << 10}
	r.wants(r.ask(resume), gpu.FailureNoRoom, checkpointed, checkpointed)
	r.condition(func(c *sim.Condition) { c.Processes[2].MemoryMiB = 40 << 10 })
	r.wants(r.ask(resume), "", running, running)
	r.wants(r.ask(gpu.CheckpointRequest{Action: gpu.CheckpointLook, PIDs: secondTask}), "", running)
	// Again is no harm.
	r.wants(r.ask(resume), "", running, running)
}

// Each hazard of the calls, as far as one program can meet it and live.
func TestHazardsOfSuspending(t *testing.T) {
	suspend := gpu.CheckpointRequest{Action: gpu.CheckpointSuspend, PIDs: firstTask}
	fails := func(call string, code int) func(*sim.Condition) {
		return func(c *sim.Condition) { c.Errors = map[string]int{call: code} }
	}
	for name, tc := range map[string]struct {
		branch  string
		happens func(*sim.Condition)
		request gpu.CheckpointRequest
		failure gpu.CheckpointFailure
		states  []gpu.CheckpointState
	}{
		"a process that does not let itself be locked": {"580.82.07", fails("cuCheckpointProcessLock", 600), suspend, gpu.FailureBusy, []gpu.CheckpointState{running, running}},
		"managed memory":    {"580.82.07", fails("cuCheckpointProcessCheckpoint", 801), suspend, gpu.FailureUnsupported, []gpu.CheckpointState{locked, locked}},
		"a call that fails": {"580.82.07", fails("cuCheckpointProcessCheckpoint", 999), suspend, gpu.FailureCUDA, []gpu.CheckpointState{locked, locked}},
		"an old driver":     {"565.57.01", func(*sim.Condition) {}, suspend, gpu.FailureUnsupported, nil},
		"more memory than the host may have": {"580.82.07", func(*sim.Condition) {},
			gpu.CheckpointRequest{Action: gpu.CheckpointSuspend, PIDs: firstTask, MostMiB: 29 << 10}, gpu.FailureGrown, []gpu.CheckpointState{running, running}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCheckpointRig(t, tc.branch)
			r.condition(tc.happens)
			r.wants(r.ask(tc.request), tc.failure, tc.states...)
			// What it left can be brought back to what it was.
			r.condition(func(c *sim.Condition) { c.Errors = nil })
			if tc.states != nil {
				r.wants(r.ask(gpu.CheckpointRequest{Action: gpu.CheckpointUnlock, PIDs: firstTask}), "", running, running)
			}
		})
	}
}

func TestCheckpointCommandRefuses(t *testing.T) {
	r := newCheckpointRig(t, "580.82.07")
	for _, tc := range []struct {
		args    []string
		request string
		says    string
	}{
		{nil, "{}", "want DRIVER"},
		{[]string{"no"}, "{}", `read "no"`},
		{[]string{r.driver}, "no", "read the request"},
		{[]string{r.driver}, `{"version":2,"action":"look"}`, "plugin and driver are of different releases"},
		{[]string{r.driver}, `{"version":1,"action":"kill"}`, `action: "kill" is not valid (look, suspend, resume, unlock)`},
	} {
		err := RunCheckpoint(tc.args, strings.NewReader(tc.request), &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: %v", tc.args, err)
		}
	}
}

// One such program is at work on a device at a time.
func TestTwoProgramsDoNotMoveTasksAtOnce(t *testing.T) {
	r := newCheckpointRig(t, "580.82.07")
	path := filepath.Join(r.dir, "lock")
	held := must(holdLock(path))
	request := string(must(json.Marshal(gpu.CheckpointRequest{Version: gpu.StateVersion, Action: gpu.CheckpointLook, Lock: path})))
	if err := RunCheckpoint([]string{r.driver}, strings.NewReader(request), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "another one is still at work") {
		t.Errorf("got %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if err := RunCheckpoint([]string{r.driver}, strings.NewReader(request), &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
