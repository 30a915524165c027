// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/jobscript"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// replayConfig guarantees each of two queues half of the GPUs.
const replayConfig = `
placement {
  policy = "PACK"
}
preemption {
  min_run_time = "0s"
}
queue "a" {
  gpus       = 6
  namespaces = ["a"]
}
queue "b" {
  gpus       = 6
  namespaces = ["b"]
}
`

// replayed is a task of a trace, on its way through the service.
type replayed struct {
	name          string
	arrives, runs int
	job           []string
	stage         replayStage
	alloc         string // the last of it
	started       int    // with the event that had it started
}

type replayStage uint8

const (
	toCome replayStage = iota
	waiting
	running
	ended
)

// due is when the next thing happens to a task by itself; never, where it is decided about.
func (k *replayed) due() int {
	switch k.stage {
	case toCome:
		return k.arrives
	case running:
		return k.started + k.runs
	}
	return math.MaxInt
}

// TestReplay drives a trace through the service's loop on the model of Nomad: each start, hold and eviction is
// as in events.golden, and gpu-sim's replay of the same trace is compared with that as well.
func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := readReplay(t, "testdata/replay/tasks.csv")
		h := newRun(t, 3, 4, replayConfig)
		began, log := time.Now(), []string(nil)
		for {
			now := slices.MinFunc(tasks, func(a, b *replayed) int { return cmp.Compare(a.due(), b.due()) }).due()
			if now == math.MaxInt {
				break
			}
			for time.Since(began).Seconds() < float64(now) {
				h.second(t.Context())
			}
			for _, stage := range []replayStage{running, toCome} { // as in a replay, ends come first
				for _, k := range tasks {
					if k.stage != stage || k.due() != now {
						continue
					}
					if k.stage = waiting; stage == toCome {
						h.submitReplayed(k)
					} else {
						k.stage = ended
						h.finish(h.jobs[k.name])
					}
					for range 18 { // an eviction takes a few seconds, and so does the way of a victim to other room
						h.second(t.Context())
						log = append(log, h.happened(tasks, now)...)
					}
					if stage == toCome && k.stage == waiting {
						log = append(log, fmt.Sprintf("%d hold %s for %s", now, k.name, h.heldFor(k)))
					}
				}
			}
		}
		golden.Compare(t, "replay/events.golden", strings.Join(log, "\n")+"\n")
	})
}

func (h *modelRun) submitReplayed(k *replayed) {
	task := map[string]any{"Driver": "docker"}
	err := jobscript.Jobs(task, append([]string{k.name}, k.job...), func(job json.RawMessage) error {
		h.submit(h.t.Context(), job)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// heldFor is what kind of thing a task waits for.
func (h *modelRun) heldFor(k *replayed) (kind string) {
	h.believed.Do(func(tx *state.Tx) {
		if hold := tx.Queue.Record(h.jobs[k.name].key).Groups["g"].Decision.Hold; hold != nil {
			kind = hold.Kind
		}
	})
	return kind
}

// happened says which tasks were started and evicted since it was called last.
func (h *modelRun) happened(tasks []*replayed, now int) (log []string) {
	for _, k := range tasks {
		for _, a := range h.allocs { // the oldest first
			if a.stub.Namespace+"/"+a.stub.JobID != k.name {
				continue
			}
			if k.stage == waiting && a.stub.ID > k.alloc {
				k.stage, k.alloc, k.started = running, a.stub.ID, now
				log = append(log, fmt.Sprintf("%d start %s on %s%v", now, k.name, a.stub.NodeName, gpusOf(a)))
			}
			if k.stage == running && a.stub.ID == k.alloc && a.stopping > 0 {
				k.stage = waiting
				log = append(log, fmt.Sprintf("%d evict %s", now, k.name))
			}
		}
	}
	slices.Sort(log)
	return log
}

// gpusOf are the positions of the GPUs of an alloc on its node.
func gpusOf(a *modelAlloc) (gpus []int) {
	for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
		_, index, _ := strings.Cut(d.Name, "/")
		gpu, _ := strconv.Atoi(index)
		gpus = append(gpus, gpu)
	}
	slices.Sort(gpus)
	return gpus
}

func readReplay(t *testing.T, path string) (tasks []*replayed) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		of := map[string]string{}
		for i, name := range rows[0] {
			of[name] = row[i]
		}
		k := &replayed{name: of["queue"] + "/" + of["name"]}
		k.arrives, _ = strconv.Atoi(of["arrival_s"])
		k.runs, _ = strconv.Atoi(of["duration_s"])
		milli, _ := strconv.Atoi(of["gpu_milli"])
		gpus := of["num_gpu"]
		if milli < 1000 {
			gpus = fmt.Sprintf("0.%03d", milli)
		}
		k.job = []string{"gpu=" + gpus, "priority=" + of["priority"]}
		tasks = append(tasks, k)
	}
	slices.SortFunc(tasks, func(a, b *replayed) int { return cmp.Compare(a.arrives, b.arrives) })
	return tasks
}
