// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
	"go.etcd.io/bbolt"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// exitsOnSignal makes the program end with code 7 when it is told to.
const exitsOnSignal = `args = ["-exit", "7"]`

// restartsAtOnce lets a task that ends start again in its place.
const restartsAtOnce = `
    restart {
      attempts = 20
      interval = "10m"
      delay    = "1s"
      mode     = "fail"
    }
`

// survivor is a task that must live through what is done to its node.
type survivor struct {
	alloc *api.Allocation
	pids  []int
	uuid  string
	held  []int
}

func startSurvivor(t *testing.T, ctx context.Context, c *cluster.Cluster, id, restart string) survivor {
	t.Helper()
	alloc := run(t, ctx, c, jobSpec{id: id, devices: slicesOf(8), config: exitsOnSignal, group: restart})
	report(t, ctx, c, alloc)
	held := holdings(t, c, alloc)
	pids := programs(t, c.Nodes[0])
	if len(pids) == 0 {
		t.Fatalf("job %s has no process", id)
	}
	return survivor{alloc: alloc, pids: pids, uuid: held[0].UUID, held: held[0].Slices}
}

// programs lists the processes of the tasks on a node.
func programs(t *testing.T, n *cluster.Node) []int {
	t.Helper()
	pids, err := n.PIDs("/bin/gpuprobe")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(pids)
	return pids
}

// check fails unless the same processes run on the same slices.
func (s survivor) check(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	if now := programs(t, c.Nodes[0]); !slices.Equal(now, s.pids) {
		t.Errorf("the task's processes were %v and are %v", s.pids, now)
	}
	s.checkShare(t, ctx, c)
	alloc, err := c.Alloc(ctx, s.alloc.ID)
	if err != nil {
		t.Fatal(err)
	}
	if alloc.ClientStatus != api.AllocClientStatusRunning || alloc.TaskStates["task"].Restarts != 0 {
		t.Errorf("the task is %s after %d restarts", alloc.ClientStatus, alloc.TaskStates["task"].Restarts)
	}
}

func (s survivor) checkShare(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	held := holdings(t, c, s.alloc)
	if len(held) != 1 || held[0].UUID != s.uuid || !slices.Equal(held[0].Slices, s.held) {
		t.Errorf("the task held %v of GPU %s, and holds %+v", s.held, s.uuid, held)
	}
	checkBooking(t, ctx, c)
}

// signal tells the task's program to end.
func (s survivor) signal(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	if err := c.API.Allocations().Signal(s.alloc, (&api.QueryOptions{}).WithContext(ctx), "task", "SIGUSR1"); err != nil {
		t.Fatal(err)
	}
}

// checkExit tells the program to end and expects its own exit code.
func (s survivor) checkExit(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	s.signal(t, ctx, c)
	alloc, err := c.WaitAlloc(ctx, s.alloc.ID, "to end", func(a *api.Allocation) bool {
		return a.ClientTerminalStatus()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range alloc.TaskStates["task"].Events {
		if event.Type == api.TaskTerminated {
			if event.ExitCode != 7 {
				t.Errorf("exit code is %d, want 7", event.ExitCode)
			}
			return
		}
	}
	t.Errorf("no event tells the exit code: %+v", alloc.TaskStates["task"].Events)
}

// checkRestart tells the program to end, and expects it again in its place with
// the same share.
func (s survivor) checkRestart(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	before, err := c.Alloc(ctx, s.alloc.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.signal(t, ctx, c)
	s.waitStarted(t, ctx, c, starts(before)+1)
}

// starts counts how often the allocation's task was started.
func starts(alloc *api.Allocation) int {
	count := 0
	for _, event := range alloc.TaskStates["task"].Events {
		if event.Type == api.TaskStarted {
			count++
		}
	}
	return count
}

// waitStarted waits until the task has started the given number of times, and
// checks that it sees the same GPU.
func (s survivor) waitStarted(t *testing.T, ctx context.Context, c *cluster.Cluster, count int) {
	t.Helper()
	_, err := c.WaitAlloc(ctx, s.alloc.ID, "to start again", func(a *api.Allocation) bool {
		return starts(a) >= count && a.TaskStates["task"].State == "running"
	})
	if err != nil {
		t.Fatal(err)
	}
	s.checkShare(t, ctx, c)
	session, err := c.ExecReport(ctx, s.alloc, "task")
	if err != nil {
		t.Fatal(err)
	}
	if session.MemoryLimit != "0=8192M" || len(session.Opens()) != 1 {
		t.Errorf("after its restart the task opens GPUs %v with the limit %q", session.Opens(), session.MemoryLimit)
	}
}

func TestTasksSurviveTheLossOf(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(context.Context, *cluster.Node) error{
		"the device plugin": func(ctx context.Context, n *cluster.Node) error {
			return restarted(ctx, n, n.KillDevicePlugin, "nomad-device-gpu")
		},
		"the driver plugin": func(ctx context.Context, n *cluster.Node) error {
			return restarted(ctx, n, n.KillDriverPlugin, "nomad-driver-containerd")
		},
		"the Nomad client": func(ctx context.Context, n *cluster.Node) error {
			driver, err := n.WaitPID(ctx, 0, "nomad-driver-containerd")
			if err != nil {
				return err
			}
			if err := errors.Join(n.KillClient(), n.StartClient(ctx)); err != nil {
				return err
			}
			now, err := n.WaitPID(ctx, 0, "nomad-driver-containerd")
			if err == nil && now != driver {
				err = fmt.Errorf("the driver was process %d and is %d: Nomad gives up a task whose driver ends while it is restored", driver, now)
			}
			return err
		},
		"containerd": func(ctx context.Context, n *cluster.Node) error {
			if err := n.KillContainerd(); err != nil {
				return err
			}
			return n.StartContainerd(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
			ends := startSurvivor(t, ctx, c, "ends", noRestart)
			restarts := startSurvivor(t, ctx, c, "restarts", restartsAtOnce)
			ends.pids = restarts.pids
			if err := lose(ctx, c.Nodes[0]); err != nil {
				t.Fatal(err)
			}
			ends.check(t, ctx, c)
			restarts.check(t, ctx, c)
			if err := c.Nodes[0].WaitNode(ctx, cluster.Ready); err != nil {
				t.Fatal(err)
			}
			run(t, ctx, c, jobSpec{id: "later", devices: slicesOf(8)})
			checkBooking(t, ctx, c)
			restarts.checkRestart(t, ctx, c)
			ends.checkExit(t, ctx, c)
		})
	}
}

// A job that is submitted while containerd is away must run when it is back: Nomad does
// not look again at a class of nodes that it has refused, and health is not part of it.
func TestJobOfABadMomentRunsWhenContainerdIsBack(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	n := c.Nodes[0]
	if err := n.KillContainerd(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitNode(ctx, func(node *api.Node) bool { return !node.Drivers["containerd"].Healthy }); err != nil {
		t.Fatal(err)
	}
	register(t, ctx, c, jobSpec{id: "patient"})
	if _, err := c.WaitBlocked(ctx, "patient"); err != nil {
		t.Fatal(err)
	}
	if err := n.StartContainerd(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Running(ctx, "patient"); err != nil {
		t.Fatal(err)
	}
}

// restarted kills a plugin and waits until Nomad has started it again.
func restarted(ctx context.Context, n *cluster.Node, kill func() error, name string) error {
	old, err := n.WaitPID(ctx, 0, name)
	if err != nil {
		return err
	}
	if err := kill(); err != nil {
		return err
	}
	_, err = n.WaitPID(ctx, old, name)
	return err
}

func TestTasksComeBackWithTheirGPUsAfterAReboot(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	a := startSurvivor(t, ctx, c, "a", restartsAtOnce)
	b := startSurvivor(t, ctx, c, "b", restartsAtOnce)
	if err := c.Nodes[0].Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	a.waitStarted(t, ctx, c, 2)
	b.waitStarted(t, ctx, c, 2)
	if running := programs(t, c.Nodes[0]); len(running) != 2 {
		t.Errorf("two tasks run as processes %v", running)
	}
	a.checkRestart(t, ctx, c)
}

// A client that is killed at any moment of its first second may not have written down which
// plugins it started. The next client has one of each, and tasks keep their GPUs.
func TestNoPluginOutlivesAClientThatForgotIt(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	n := c.Nodes[0]
	s := startSurvivor(t, ctx, c, "a", noRestart)
	if err := n.KillClient(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		began, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- n.StartClient(began) }()
		old, err := n.PIDs("nomad-device-gpu")
		if err != nil {
			t.Fatal(err)
		}
		for now := old; !slices.ContainsFunc(now, func(pid int) bool { return !slices.Contains(old, pid) }); {
			if now, err = n.PIDs("nomad-device-gpu"); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.KillClient(); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-done
	}
	// The record of the last client's plugins is lost too.
	state := n.Dir("nomad/client/state.db")
	if err := n.StartClient(ctx); err != nil {
		t.Fatal(err)
	}
	orphan, err := n.WaitPID(ctx, 0, "nomad-device-gpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.KillClient(); err != nil {
		t.Fatal(err)
	}
	if err := forgetDevicePlugins(state); err != nil {
		t.Fatal(err)
	}
	if err := n.StartClient(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitPID(ctx, orphan, "nomad-device-gpu"); err != nil {
		t.Error(err)
	}
	if _, err := n.WaitPID(ctx, 0, "nomad-driver-containerd"); err != nil {
		t.Error(err)
	}
	s.check(t, ctx, c)
	s.checkExit(t, ctx, c)
}

// forgetDevicePlugins removes the record of device plugins from a client's state.
func forgetDevicePlugins(path string) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("devicemanager")) })
	return errors.Join(err, db.Close())
}
