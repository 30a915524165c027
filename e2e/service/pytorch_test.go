// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// systemPython is Debian's, which has Debian's PyTorch.
const systemPython = "/usr/bin/python3"

// trainer adds ones over all ranks, for ever, and says after each sum who it is:
// rank, world size, sum, master and process.
const trainer = `
import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
while True:
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(dist.get_rank(), dist.get_world_size(), int(ones), os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"], os.getpid(), flush=True)
    time.sleep(0.5)
`

// training is a distributed training with PyTorch.
type training struct {
	id, launcher   string
	count, atLeast int
	spread         bool // one rank per machine
}

func (j training) hcl() string {
	more := ""
	if j.atLeast > 0 {
		more = fmt.Sprintf("gpu_gang_min = \"%d\"", j.atLeast)
	}
	constraint := ""
	if j.spread {
		constraint = "constraint {\n    distinct_hosts = true\n  }"
	}
	return fmt.Sprintf(`
job %q {
  type = "batch"
  %s
  group "ranks" {
    count = %d
    network { mode = "host" }
    restart {
      attempts = 100
      interval = "1h"
      delay    = "1s"
      mode     = "delay"
    }
    reschedule {
      attempts       = 0
      unlimited      = true
      delay          = "5s"
      delay_function = "constant"
    }
    task "rank" {
      driver = "raw_exec"
      meta {
        gpu             = "1"
        gpu_framework   = "pytorch"
        gpu_distributed = "true"
        gpu_interface   = "lo"
        %s
      }
      config {
        command = %q
        args    = [%s]
      }
      template {
        destination = "local/train.py"
        data        = <<-PYTHON
%s
        PYTHON
      }
      kill_timeout = "1s"
      resources {
        cpu    = 100
        memory = 300
      }
    }
  }
}`, j.id, constraint, j.count, more, systemPython, j.launcher, strings.TrimSpace(trainer))
}

const (
	plainPython = `"local/train.py"`
	// Debian's PyTorch 1.13 knows only "1" and "2" of these under Python 3.11.
	torchrun = `"-m", "torch.distributed.run", "--redirects", "1", "--tee", "1", "local/train.py"`
)

// sum is what a rank told of one step.
type sum struct {
	rank, world, sum int
	master           string
	process          process
}

// process is a process of an alloc; each machine numbers its own, so that two of
// two machines may have one number.
type process struct {
	alloc string
	pid   int
}

// TestPyTorch trains with the real PyTorch, over gloo, on simulated machines: ranks
// are killed, a machine dies, and the number of ranks changes in every way there is.
func TestPyTorch(t *testing.T) {
	if err := exec.Command(systemPython, "-c", "import torch.distributed as d; assert d.is_gloo_available()").Run(); err != nil {
		t.Skip(systemPython, "has no PyTorch with gloo; make test-pytorch installs Debian's:", err)
	}
	t.Parallel()
	ctx, c := startWith(t, 3, cluster.Options{})
	r := serve(ctx, t, c, quick)
	admits(ctx, t, r)
	// The second has the machine back that dies in the first.
	if t.Run("fixed", func(t *testing.T) { fixedRanks(ctx, t, c, r) }) {
		t.Run("torchrun", func(t *testing.T) { elasticRanks(ctx, t, c, r) })
	}
	doubleBooked(ctx, t, c.API)
}

func fixedRanks(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	submitText(ctx, t, r, training{id: "fixed", launcher: plainPython, count: 2, spread: true}.hcl())
	before := agree(ctx, t, c, "fixed", 2, nil)
	for _, rank := range []int{1, 0} {
		killRank(t, c, "fixed", rank)
		before = agree(ctx, t, c, "fixed", 2, before)
	}

	lost := rankAlloc(ctx, t, c, "fixed", 0)
	for _, n := range c.Nodes {
		if n.ID != lost.NodeID {
			continue
		}
		if err := n.PowerOff(); err != nil {
			t.Fatal(err)
		}
		master := before[0].master
		if after := agree(ctx, t, c, "fixed", 2, before); after[0].master == master {
			t.Errorf("rank 0 moved and the ranks still meet at %s", master)
		}
		if err := n.PowerOn(ctx); err != nil {
			t.Fatal(err)
		}
	}

	err := scaleTo(ctx, r.API, "fixed", 3)
	if err == nil || !strings.Contains(err.Error(), "cannot learn another WORLD_SIZE") {
		t.Errorf("scaled through the service: %v", err)
	}
	before = agree(ctx, t, c, "fixed", 2, nil)
	if err := scaleTo(ctx, c.API, "fixed", 3); err != nil { // around the service
		t.Fatal(err)
	}
	before = agree(ctx, t, c, "fixed", 3, before)
	submitText(ctx, t, r, training{id: "fixed", launcher: plainPython, count: 2, spread: true}.hcl())
	agree(ctx, t, c, "fixed", 2, before)
	if err := c.Stop(ctx, "fixed"); err != nil {
		t.Fatal(err)
	}
}

func elasticRanks(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	// On real machines two allocations of different nodes differ in their address.
	// These have one address, so their processes get different numbers.
	for i, n := range c.Nodes {
		number(ctx, t, n, (i+1)*5000)
	}
	neighbor := job{id: "neighbor", priority: 90, meta: map[string]string{"gpu": "2"}}
	admitted(ctx, t, r, neighbor)
	runs(ctx, t, c.API, "neighbor", 1)
	submitText(ctx, t, r, training{id: "elastic", launcher: torchrun, count: 3, atLeast: 2, spread: true}.hcl())
	before := agree(ctx, t, c, "elastic", 2, nil)
	if err := c.Stop(ctx, "neighbor"); err != nil {
		t.Fatal(err)
	}
	before = agree(ctx, t, c, "elastic", 3, before)
	for _, rank := range []int{2, 0} {
		killRank(t, c, "elastic", rank)
		before = agree(ctx, t, c, "elastic", 3, before)
	}
	if err := scaleTo(ctx, r.API, "elastic", 2); err != nil {
		t.Fatal(err)
	}
	agree(ctx, t, c, "elastic", 2, before)
	if err := scaleTo(ctx, r.API, "elastic", 4); err == nil || !strings.Contains(err.Error(), "count 4 is not from 2 to 3") {
		t.Errorf("scaled beyond what torchrun was started with: %v", err)
	}
}

// number has a machine number its next process so.
func number(ctx context.Context, t *testing.T, n *cluster.Node, next int) {
	t.Helper()
	pids, err := n.PIDs("nomad agent")
	if err != nil || len(pids) == 0 {
		t.Fatalf("machine %s runs %v, %v", n.Name, pids, err)
	}
	in := exec.CommandContext(ctx, "nsenter", "--target", fmt.Sprint(pids[0]), "--pid", "--mount", "sh", "-c", fmt.Sprintf("echo %d > /proc/sys/kernel/ns_last_pid", next))
	if out, err := in.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// agree waits until so many ranks of a job compute one sum of all, each as another
// process than before, and returns what they last said.
func agree(ctx context.Context, t *testing.T, c *cluster.Cluster, job string, world int, before []sum) []sum {
	t.Helper()
	old := map[process]bool{}
	for _, s := range before {
		old[s.process] = true
	}
	var sums []sum
	took := until(ctx, t, fmt.Sprintf("train with %d ranks", world), 5*time.Minute, func() (bool, string) {
		time.Sleep(500 * time.Millisecond) // each look reads the logs of all ranks
		sums = make([]sum, world)
		live := allocs(ctx, t, c.API, "default", job)
		ranks := map[int]bool{}
		for _, a := range live {
			s, found := lastSum(ctx, c, a)
			if !found || old[s.process] || s.world != world || s.sum != world || s.rank >= world {
				return false, fmt.Sprintf("%s says %+v", a.Name, s)
			}
			ranks[s.rank], sums[s.rank] = true, s
		}
		for _, s := range sums {
			if s.master != sums[0].master {
				return false, fmt.Sprintf("they meet at %s and %s", s.master, sums[0].master)
			}
		}
		return len(ranks) == world && len(live) == world, fmt.Sprintf("%d ranks in %d allocs", len(ranks), len(live))
	})
	t.Logf("%s: %d ranks agree after %s", job, world, took.Round(time.Second))
	return sums
}

// lastSum is the last whole line that a rank printed.
func lastSum(ctx context.Context, c *cluster.Cluster, a *api.AllocationListStub) (sum, bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// AllocFS would open a connection to the node for each look, and leave it open.
	file, err := c.API.Raw().Response("/v1/client/fs/cat/"+a.ID+"?path=alloc/logs/rank.stdout.0", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return sum{}, false
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) < 2 {
		return sum{}, false
	}
	s := sum{process: process{alloc: a.ID}}
	line := lines[len(lines)-2]
	line = line[strings.LastIndex(line, "]:")+1:] // torchrun writes whose line it is: "[default0]:"
	_, err = fmt.Sscan(strings.TrimPrefix(line, ":"), &s.rank, &s.world, &s.sum, &s.master, &s.process.pid)
	return s, err == nil
}

// rankAlloc is the alloc of a job with this index.
func rankAlloc(ctx context.Context, t *testing.T, c *cluster.Cluster, job string, index int) *api.AllocationListStub {
	t.Helper()
	for _, a := range allocs(ctx, t, c.API, "default", job) {
		if strings.HasSuffix(a.Name, fmt.Sprintf("[%d]", index)) {
			return a
		}
	}
	t.Fatalf("job %s has no alloc of index %d", job, index)
	return nil
}

func killRank(t *testing.T, c *cluster.Cluster, job string, index int) {
	t.Helper()
	a := rankAlloc(t.Context(), t, c, job, index)
	if err := c.API.Allocations().Signal(&api.Allocation{ID: a.ID, NodeID: a.NodeID}, nil, "rank", "SIGKILL"); err != nil {
		t.Fatal(err)
	}
}

func submitText(ctx context.Context, t *testing.T, r *replica, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.hcl")
	write(t, file, text)
	if code, out := nomad(ctx, t, r.URL, "job", "run", "-detach", file); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
}

func scaleTo(ctx context.Context, to *api.Client, job string, count int) error {
	_, _, err := to.Jobs().Scale(job, "ranks", &count, "", false, nil, (&api.WriteOptions{}).WithContext(ctx))
	return err
}
