// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// hostTools lets tasks mount the host's programs.
const hostTools = "volumes {\n enabled = true\n allow_paths = [\"/usr\"]\n}\n"

// pidsOf lists the machine's numbers of an allocation's processes of one program.
func pidsOf(t *testing.T, n *cluster.Node, alloc *api.Allocation, program string) []int {
	t.Helper()
	pids, err := n.PIDs(program)
	if err != nil {
		t.Fatal(err)
	}
	var own []int
	for _, pid := range pids {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // empty of one that has ended
		if inside, err := pidInMachine(pid); err == nil && strings.Contains(string(environ), "NOMAD_ALLOC_ID="+alloc.ID) && strings.HasPrefix(processName(pid), filepath.Base(program)) {
			own = append(own, inside)
		}
	}
	slices.Sort(own)
	return own
}

// within bounds one part of a test.
func within(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for !done() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("in vain: %s", what)
		}
	}
}

// A suspended task floods the driver with wishes, and has one program after another begin to use
// the GPU. It is killed, and its neighbor keeps the GPU and is answered.
func TestASuspendedTaskThatIsHostile(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: seats, Driver: hostTools})
	node := c.Nodes[0]
	hostile := run(t, ctx, c, jobSpec{id: "hostile", devices: oneSeat, group: noRestart, config: script(`
i=0; while [ $i -lt 10 ]; do /bin/gpuprobe >/dev/null & i=$((i+1)); done
for i in 1 2 3 4; do (while :; do nomad-gpu-self want; nomad-gpu-self yield; done >/dev/null 2>&1) & done
`, "gpu {\n memory = \"18GiB\"\n priority = \"40\"\n}")})
	uuid, lease := onlyGPU(t, c, hostile), gpu.LeaseID(hostile.ID, "task")
	var own []int
	within(ctx, t, "the programs of the hostile task", func() bool { own = pidsOf(t, node, hostile, "/bin/gpuprobe"); return len(own) == 10 })
	use := func(pid int, mib uint64) {
		t.Helper()
		if err := sim.Update(node.SimDir(), uuid, func(c *sim.Condition) {
			c.Processes = append(c.Processes, sim.Process{PID: uint32(pid), MemoryMiB: mib})
		}); err != nil {
			t.Fatal(err)
		}
	}
	use(own[0], 18<<10)
	neighbor := startSitter(t, ctx, c, "neighbor", 50, 70<<10)
	awaitSeats(t, ctx, node, uuid, map[string]gpu.SeatState{lease: gpu.SeatSuspended, neighbor.lease: gpu.SeatResident})

	ended := func() bool {
		alloc, err := c.Alloc(ctx, hostile.ID)
		if err != nil {
			t.Fatal(err)
		}
		return alloc.ClientTerminalStatus()
	}
	for _, pid := range own[1:] {
		use(pid, 100)
		within(ctx, t, "the program is suspended too, or its task ends", func() bool {
			states, err := sim.ReadProcessStates(node.SimDir())
			return err == nil && states[pid] == gpu.ProcessCheckpointed || ended()
		})
	}
	within(ctx, t, "the hostile task ends", ended)
	alloc, err := c.Alloc(ctx, hostile.ID)
	if err != nil || !says("it starts programs on the GPU again and again while it is suspended")(alloc) {
		t.Errorf("the hostile task does not say why it was killed: %v, %+v", err, alloc.TaskStates["task"].Events)
	}
	self(t, ctx, c, neighbor.alloc, "seat       resident since ", "status")
	awaitSeats(t, ctx, node, uuid, map[string]gpu.SeatState{neighbor.lease: gpu.SeatResident})
	if alloc, err := c.Alloc(ctx, neighbor.alloc.ID); err != nil || alloc.ClientStatus != api.AllocClientStatusRunning || alloc.TaskStates["task"].Restarts != 0 {
		t.Errorf("the neighbor of a hostile task: %v, %s", err, alloc.ClientStatus)
	}
}

// Programs of three tasks use an MPS GPU without its daemon: one of our driver's, whose task is killed;
// one of raw_exec's, which the metrics name; and one that claims to be the victim's, which is foreign.
// Then the machine reboots: their processes and files are gone, and the tasks are back on their GPU.
func TestProgramsThatLeaveMPS(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), MPS: "host_shm = true", Driver: hostTools,
		GPUs: sliced + fmt.Sprintf("health { measure = \"300ms\" }\nmetrics {\n  address = %q\n}\n", address)})
	node, metrics := c.Nodes[0], "http://"+address+"/metrics"
	victim := startSurvivor(t, ctx, c, "victim", restartsAtOnce)
	probe := filepath.Join(root, "bin", "e2e", "gpuprobe")
	begin := func(id, hcl string) *api.Allocation {
		t.Helper()
		if _, err := c.Run(ctx, hcl); err != nil {
			t.Fatal(err)
		}
		alloc, err := c.Running(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return alloc
	}
	leaves := begin("leaves", hostJob("leaves", "raw_exec", fmt.Sprintf("command = \"/usr/bin/env\"\nargs = [\"-u\", \"CUDA_MPS_PIPE_DIRECTORY\", %q]", probe), "", slicesOf(4)))
	claims := begin("claims", hostJob("claims", "raw_exec", fmt.Sprintf("command = \"/usr/bin/env\"\nargs = [\"NOMAD_ALLOC_ID=%s\", %q]", victim.alloc.ID, probe), "", slicesOf(4)))
	escapes := run(t, ctx, c, jobSpec{id: "escapes", devices: slicesOf(4), group: noRestart, config: script(`
echo x > /dev/shm/left
ln -s / /alloc/left
env -u CUDA_MPS_PIPE_DIRECTORY /bin/gpuprobe
`, "")})
	pid := func(alloc *api.Allocation, program string, skip ...int) uint32 {
		t.Helper()
		found := -1
		within(ctx, t, "a program of "+alloc.JobID, func() bool {
			for _, pid := range pidsOf(t, node, alloc, program) {
				if !slices.Contains(skip, pid) {
					found = pid
				}
			}
			return found > 0
		})
		return uint32(found)
	}
	own := pid(victim.alloc, "/bin/gpuprobe")
	forged := pid(victim.alloc, "e2e/gpuprobe", int(own))
	if err := sim.Update(node.SimDir(), victim.uuid, func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: own, MemoryMiB: 500, MPS: true}, {PID: forged, MemoryMiB: 3000},
			{PID: pid(leaves, "e2e/gpuprobe"), MemoryMiB: 2000}, {PID: pid(escapes, "/bin/gpuprobe"), MemoryMiB: 100}}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitAlloc(ctx, escapes.ID, "to be killed", says("without its MPS daemon")); err != nil {
		t.Error(err)
	}
	if err := sim.Update(node.SimDir(), victim.uuid, func(c *sim.Condition) { c.Processes = c.Processes[:3] }); err != nil {
		t.Fatal(err)
	}
	waitStats(t, ctx, c, leaves, "Task memory", 2000)
	for _, row := range []struct {
		name  string
		alloc *api.Allocation
		want  string
	}{
		{"nomad_gpu_task_beside_mps_processes", leaves, "1"},
		{"nomad_gpu_task_beside_mps_processes", victim.alloc, "0"},
		{"nomad_gpu_task_memory_used_bytes", victim.alloc, fmt.Sprint(float64(500 << 20))},
	} {
		if got := metric(t, ctx, metrics, row.name, victim.uuid, row.alloc.ID); got != row.want {
			t.Errorf("%s of %s is %q, want %s", row.name, row.alloc.JobID, got, row.want)
		}
	}
	if got := metric(t, ctx, metrics, "nomad_gpu_foreign_processes", victim.uuid); got != "1" {
		t.Errorf("there are %q foreign processes, want that of %s", got, claims.JobID)
	}
	err := node.Reboot(ctx, func() error {
		return sim.Update(node.SimDir(), victim.uuid, func(c *sim.Condition) { c.Processes = nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitAlloc(ctx, victim.alloc.ID, "to start again", func(a *api.Allocation) bool {
		return starts(a) == 2 && a.TaskStates["task"].State == "running"
	}); err != nil {
		t.Fatal(err)
	}
	if held := holdings(t, c, victim.alloc); len(held) != 1 || held[0].UUID != victim.uuid || !slices.Equal(held[0].Slices, victim.held) {
		t.Errorf("the victim held %v of GPU %s, and holds %+v", victim.held, victim.uuid, held)
	}
	shm := fmt.Sprintf("/proc/%d/root/dev/shm/left", containerPID(t, ctx, node, victim.alloc))
	if _, err := os.Stat(shm); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the reboot the victim finds what a neighbor left: %v", err)
	}
}

// A docker task attacks the gate of its GPU's daemon, from the directory that jobs of docker mount: it
// floods the gate, and takes its place. A neighbor of our driver's is served all the time, as docs/mps.md
// says, and one of docker's once the attacker is gone.
func TestADockerTaskThatAttacksTheGate(t *testing.T) {
	t.Parallel()
	ctx, c, _ := startDocker(t, 1, sliced)
	ours := run(t, ctx, c, jobSpec{id: "ours", devices: slicesOf(8)})
	theirs := runDocker(t, ctx, c, jobSpec{id: "theirs", devices: slicesOf(8), config: mpsVolumes})
	inTask := func(alloc *api.Allocation) introduction {
		return func() ([]byte, error) { return c.Exec(ctx, alloc, "task", "/bin/mps-client", "introduce", "20") }
	}
	attackGate(t, ctx, c, inTask(ours), inTask(theirs), func(attack string) *api.Allocation {
		return runDocker(t, ctx, c, jobSpec{id: attack, devices: slicesOf(4), group: noRestart,
			config: fmt.Sprintf("entrypoint = [\"/bin/mps-client\"]\nargs = [%q]\n", attack) + mpsVolumes})
	})
	if open := report(t, ctx, c, ours).Opens(); len(open) != 1 {
		t.Errorf("the neighbor opens GPUs %v", open)
	}
}

// introduction has a program introduce itself to a gate twenty times, and returns how many
// milliseconds that took in the median and at most.
type introduction func() ([]byte, error)

// attackGate has another driver's task attack a gate, which runs it by the attack's name.
func attackGate(t *testing.T, ctx context.Context, c *cluster.Cluster, ours, theirs introduction, begin func(attack string) *api.Allocation) {
	t.Helper()
	ask := func(introduce introduction) (median, worst int) {
		t.Helper()
		out, err := introduce()
		if err == nil {
			_, err = fmt.Sscan(string(out), &median, &worst)
		}
		if err != nil {
			t.Error(err)
		}
		return median, worst
	}
	_, quiet := ask(ours)
	for _, attack := range []struct {
		name, begun string
		others      bool // are served meanwhile too
	}{{"flood", "begun", true}, {"impostor", "in the gate's place", false}} {
		attacker := begin(attack.name)
		if line, err := c.FirstLine(ctx, attacker, "task"); err != nil || string(line) != attack.begun {
			t.Fatalf("%s says %q, %v", attack.name, line, err)
		}
		for neighbor, introduce := range map[string]introduction{"ours": ours, "theirs": theirs} {
			if neighbor == "theirs" && !attack.others {
				continue
			}
			median, worst := ask(introduce)
			t.Logf("%s: %s waits %d ms in the median, %d at most, and %d when all is quiet", attack.name, neighbor, median, worst, quiet)
			if worst > max(1000, 5*quiet) {
				t.Errorf("%s: %s waits %d ms", attack.name, neighbor, worst)
			}
		}
		stop(t, ctx, c, attack.name)
		within(ctx, t, "the other driver's neighbor is served again", func() bool { _, err := theirs(); return err == nil })
	}
}
