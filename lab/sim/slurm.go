// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Slurm is what was read of Slurm's accounting.
type Slurm struct {
	Tasks []Task
	// Jobs is how many jobs these were; Wide of them ran on several nodes at once: a gang of a
	// task for each. NeverRan were left out.
	Jobs, Wide, NeverRan int
}

// slurmFields are the fields of sacct that are needed.
var slurmFields = []string{"JobID", "Submit", "ElapsedRaw", "TimelimitRaw", "ReqTRES", "Account"}

// ReadSlurm reads what sacct --parsable2 writes of jobs as a whole (-X): a job's account is its
// queue, the type of its GPUs their model. The first submission is at second 0.
func ReadSlurm(r io.Reader) (Slurm, error) {
	c := csv.NewReader(r)
	c.Comma, c.LazyQuotes = '|', true
	t, err := readTable(c, slurmFields...)
	if err != nil {
		return Slurm{}, err
	}
	var s Slurm
	var submitted []time.Time
	for t.next() {
		at, err := time.Parse("2006-01-02T15:04:05", t.text("Submit"))
		if err != nil {
			t.fail(fmt.Errorf("%w: line %d: Submit %q is no time such as 2026-01-31T12:00:00", ErrTrace, t.line("Submit"), t.text("Submit")))
			break
		}
		task := Task{Name: t.text("JobID"), RunSeconds: t.decimal("ElapsedRaw"), Queue: t.text("Account")}
		if limit := t.text("TimelimitRaw"); limit != "" && limit != "UNLIMITED" && limit != "Partition_Limit" {
			task.LimitSeconds = 60 * t.decimal("TimelimitRaw")
		}
		nodes, err := task.takeTRES(t.text("ReqTRES"))
		if err != nil {
			t.fail(fmt.Errorf("%w: line %d: ReqTRES %q: %w", ErrTrace, t.line("ReqTRES"), t.text("ReqTRES"), err))
		}
		if task.RunSeconds == 0 {
			s.NeverRan++
			continue
		}
		if s.Jobs++; nodes > 1 {
			s.Wide++
		}
		for i := range nodes {
			part := task
			if nodes > 1 {
				part.Name, part.Gang = fmt.Sprintf("%s/%d", task.Name, i), task.Name
			}
			s.Tasks, submitted = append(s.Tasks, part), append(submitted, at)
		}
	}
	if t.err != nil {
		return Slurm{}, t.err
	}
	if len(s.Tasks) == 0 {
		return Slurm{}, fmt.Errorf("%w: none of %d jobs ran", ErrTrace, s.NeverRan)
	}
	first := slices.MinFunc(submitted, time.Time.Compare)
	for i := range s.Tasks {
		s.Tasks[i].ArriveSecond = submitted[i].Sub(first).Seconds()
	}
	slices.SortStableFunc(s.Tasks, func(a, b Task) int { return cmp.Compare(a.ArriveSecond, b.ArriveSecond) })
	return s, nil
}

// takeTRES takes over what a job asked for in all, such as cpu=16,gres/gpu:a100=4,mem=64G,node=2, as
// the even part of each of its nodes, rounded up.
func (t *Task) takeTRES(text string) (nodes int64, err error) {
	amounts := map[string]int64{}
	for part := range strings.SplitSeq(text, ",") {
		name, amount, found := strings.Cut(part, "=")
		if !found {
			if part == "" {
				continue
			}
			return 0, fmt.Errorf("%q is no name=amount", part)
		}
		unit := int64(1)
		if at := strings.IndexAny(amount, "KMGT"); name == "mem" && at == len(amount)-1 {
			unit, amount = int64(1)<<(10*strings.IndexByte("KMGT", amount[at])), amount[:at]
		}
		number, err := strconv.ParseFloat(amount, 64)
		if err != nil || number < 0 || number > maxAmount {
			return 0, fmt.Errorf("%q is no amount", part)
		}
		if model, typed := strings.CutPrefix(name, "gres/gpu:"); typed {
			t.Models, name = append(t.Models, strings.ToUpper(model)), "gres/gpu:"
		}
		amounts[name] += int64(number * float64(unit))
	}
	nodes = max(1, amounts["node"])
	each := func(amount int64) int64 { return (amount + nodes - 1) / nodes }
	t.CPUMilli, t.MemoryMiB = 1000*each(amounts["cpu"]), each(amounts["mem"]>>10) // of KiB
	if gpus := each(max(amounts["gres/gpu"], amounts["gres/gpu:"])); gpus > maxGPUs {
		return 0, fmt.Errorf("%d GPUs on a node, at most %d are possible", gpus, maxGPUs)
	} else if gpus > 0 {
		t.GPUs, t.GPUMilli = int(gpus), gpuMilli
	}
	return nodes, nil
}
