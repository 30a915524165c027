// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
)

// RunFile registers the job of an HCL file and returns it.
func (c *Cluster) RunFile(ctx context.Context, path string) (*api.Job, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	job, err := c.Run(ctx, string(text))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	return job, nil
}

// Run registers a job written in HCL, as "nomad job run" does.
func (c *Cluster) Run(ctx context.Context, hcl string) (*api.Job, error) {
	job, err := c.API.Jobs().ParseHCL(hcl, true)
	if err != nil {
		return nil, fmt.Errorf("parse job: %w", err)
	}
	write := (&api.WriteOptions{}).WithContext(ctx)
	if _, _, err := c.API.Jobs().RegisterOpts(job, &api.RegisterOptions{}, write); err != nil {
		return nil, fmt.Errorf("register job %s: %w", *job.ID, err)
	}
	return job, nil
}

// stopTimeout is how long a job may take to stop. Nomad's server was seen to answer no
// request of that kind any more.
const stopTimeout = 3 * time.Minute

// Stop stops a job and returns when its tasks are gone.
func (c *Cluster) Stop(ctx context.Context, job string) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	write := (&api.WriteOptions{}).WithContext(ctx)
	if _, _, err := c.API.Jobs().Deregister(job, false, write); err != nil {
		return fmt.Errorf("stop job %s: %w", job, err)
	}
	return c.waitAllocs(ctx, job, "to stop", func(allocs []*api.AllocationListStub) bool {
		for _, a := range allocs {
			if !Terminal(a) {
				return false
			}
		}
		return true
	})
}

// Terminal reports whether the allocation's tasks have ended for good.
func Terminal(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// Running waits for an allocation of the job that runs, and returns it.
func (c *Cluster) Running(ctx context.Context, job string) (*api.Allocation, error) {
	allocs, err := c.RunningAll(ctx, job, 1)
	if err != nil {
		return nil, err
	}
	return allocs[0], nil
}

// RunningAll waits until count allocations of the job run.
func (c *Cluster) RunningAll(ctx context.Context, job string, count int) ([]*api.Allocation, error) {
	stubs, err := c.WaitAllocs(ctx, job, "to run", func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
	}, count)
	if err != nil {
		return nil, err
	}
	var running []*api.Allocation
	for _, stub := range stubs {
		alloc, err := c.Alloc(ctx, stub.ID)
		if err != nil {
			return nil, err
		}
		running = append(running, alloc)
	}
	return running, nil
}

// WaitAllocs waits until at least count allocations of the job are as wanted,
// and returns them.
func (c *Cluster) WaitAllocs(ctx context.Context, job, what string, wanted func(*api.AllocationListStub) bool, count int) ([]*api.AllocationListStub, error) {
	var found []*api.AllocationListStub
	err := c.waitAllocs(ctx, job, what, func(allocs []*api.AllocationListStub) bool {
		found = nil
		for _, a := range allocs {
			if wanted(a) {
				found = append(found, a)
			}
		}
		return len(found) >= count
	})
	return found, err
}

func (c *Cluster) waitAllocs(ctx context.Context, job, what string, done func([]*api.AllocationListStub) bool) error {
	q := &api.QueryOptions{WaitTime: time.Minute}
	var last []*api.AllocationListStub
	for {
		allocs, meta, err := c.API.Jobs().Allocations(job, true, q.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("wait for job %s %s: %w\n%s", job, what, err, describe(last))
		}
		if done(allocs) {
			return nil
		}
		last, q.WaitIndex = allocs, meta.LastIndex
	}
}

// clock is how logs and messages tell the time.
const clock = "15:04:05.000"

// describe tells why allocations are as they are.
func describe(allocs []*api.AllocationListStub) string {
	var b bytes.Buffer
	for _, a := range allocs {
		fmt.Fprintf(&b, "  alloc %.8s of job %s on %s: %s %s, wanted %s %s\n", a.ID, a.JobID, a.NodeName,
			a.ClientStatus, a.ClientDescription, a.DesiredStatus, a.DesiredDescription)
		for task, state := range a.TaskStates {
			for _, event := range state.Events {
				fmt.Fprintf(&b, "    %s %s: %s: %s\n", time.Unix(0, event.Time).UTC().Format(clock), task, event.Type, event.DisplayMessage)
			}
		}
	}
	return b.String()
}

// Alloc reads an allocation.
func (c *Cluster) Alloc(ctx context.Context, id string) (*api.Allocation, error) {
	alloc, _, err := c.API.Allocations().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	return alloc, err
}

// WaitAlloc blocks until the allocation is as wanted, and returns it.
func (c *Cluster) WaitAlloc(ctx context.Context, id, what string, wanted func(*api.Allocation) bool) (*api.Allocation, error) {
	q := &api.QueryOptions{WaitTime: time.Minute}
	var last []*api.AllocationListStub
	for {
		alloc, meta, err := c.API.Allocations().Info(id, q.WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("wait for alloc %.8s %s: %w\n%s", id, what, err, describe(last))
		}
		if wanted(alloc) {
			return alloc, nil
		}
		last, q.WaitIndex = []*api.AllocationListStub{alloc.Stub()}, meta.LastIndex
	}
}

// WaitBlocked waits until Nomad says that the job waits for room, and returns
// the evaluation that tells why.
func (c *Cluster) WaitBlocked(ctx context.Context, job string) (*api.Evaluation, error) {
	q := &api.QueryOptions{WaitTime: time.Minute}
	for {
		evals, meta, err := c.API.Jobs().Evaluations(job, q.WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("wait for job %s to be blocked: %w", job, err)
		}
		blocked := false
		var reasons *api.Evaluation
		for _, e := range evals {
			blocked = blocked || e.Status == "blocked"
			if len(e.FailedTGAllocs) > 0 && (reasons == nil || e.ModifyIndex > reasons.ModifyIndex) {
				reasons = e
			}
		}
		if blocked && reasons != nil {
			return reasons, nil
		}
		q.WaitIndex = meta.LastIndex
	}
}

// Settled waits until the job either runs or is known to wait. It returns the
// allocation, or what the job waits for. A job all of whose allocations failed
// is an error at once.
func (c *Cluster) Settled(ctx context.Context, job string) (*api.Allocation, string, error) {
	q := &api.QueryOptions{WaitTime: time.Minute}
	for {
		evals, meta, err := c.API.Jobs().Evaluations(job, q.WithContext(ctx))
		if err != nil {
			return nil, "", fmt.Errorf("wait for job %s: %w", job, err)
		}
		for _, e := range evals {
			if e.Status == "complete" && len(e.FailedTGAllocs) > 0 {
				return nil, Reasons(e), nil
			}
			if e.Status == "complete" {
				alloc, err := c.runningOrFailed(ctx, job)
				return alloc, "", err
			}
		}
		q.WaitIndex = meta.LastIndex
	}
}

func (c *Cluster) runningOrFailed(ctx context.Context, job string) (*api.Allocation, error) {
	var runs string
	var all []*api.AllocationListStub
	err := c.waitAllocs(ctx, job, "to run", func(allocs []*api.AllocationListStub) bool {
		all, runs = allocs, ""
		failed := 0
		for _, a := range allocs {
			switch {
			case a.ClientStatus == api.AllocClientStatusRunning:
				runs = a.ID
			case Terminal(a):
				failed++
			}
		}
		return runs != "" || failed > 0 && failed == len(allocs)
	})
	switch {
	case err != nil:
		return nil, err
	case runs == "":
		return nil, fmt.Errorf("every allocation of job %s failed\n%s", job, describe(all))
	}
	return c.Alloc(ctx, runs)
}

// Reasons puts into words why an evaluation could not place a job, as
// "nomad job status" does.
func Reasons(e *api.Evaluation) string {
	var reasons []string
	for _, group := range slices.Sorted(maps.Keys(e.FailedTGAllocs)) {
		metric := e.FailedTGAllocs[group]
		for what, nodes := range metric.ConstraintFiltered {
			reasons = append(reasons, fmt.Sprintf("constraint %q filtered %d nodes", what, nodes))
		}
		for what, nodes := range metric.DimensionExhausted {
			reasons = append(reasons, fmt.Sprintf("dimension %q exhausted on %d nodes", what, nodes))
		}
	}
	slices.Sort(reasons)
	return strings.Join(reasons, "; ")
}

// FirstLine returns the first line that a task prints, waiting for it.
func (c *Cluster) FirstLine(ctx context.Context, alloc *api.Allocation, task string) ([]byte, error) {
	for {
		line, err := c.firstLine(ctx, alloc, task)
		if !errors.Is(err, errSilent) {
			return line, err
		}
	}
}

// Nomad misses what a task writes between its last look at an empty file and the
// beginning of its watch over it, and then says nothing until the task writes again. So
// output that stays away is asked for again.
const silence = 15 * time.Second

var errSilent = errors.New("nothing came")

func (c *Cluster) firstLine(ctx context.Context, alloc *api.Allocation, task string) ([]byte, error) {
	cancel := make(chan struct{})
	defer close(cancel)
	frames, problems := c.API.AllocFS().Logs(alloc, true, task, "stdout", "start", 0, cancel, (&api.QueryOptions{}).WithContext(ctx))
	silent := time.NewTimer(silence)
	defer silent.Stop()
	var text []byte
	for {
		select {
		case frame, open := <-frames:
			if !open {
				return nil, fmt.Errorf("read output of %s: it ended", task)
			}
			text = append(text, frame.Data...)
			if line, _, found := bytes.Cut(text, []byte("\n")); found {
				return line, nil
			}
		case err := <-problems:
			return nil, fmt.Errorf("read output of %s: %w", task, err)
		case <-silent.C:
			return nil, errSilent
		case <-ctx.Done():
			return nil, fmt.Errorf("read output of %s: %w", task, ctx.Err())
		}
	}
}

// Report reads what the task's program found when it started.
func (c *Cluster) Report(ctx context.Context, alloc *api.Allocation, task string) (probe.Report, error) {
	line, err := c.FirstLine(ctx, alloc, task)
	if err != nil {
		return probe.Report{}, err
	}
	return probe.Parse(line)
}

// ExecReport runs the program once more, in an exec session of the task.
func (c *Cluster) ExecReport(ctx context.Context, alloc *api.Allocation, task string) (probe.Report, error) {
	out, err := c.Exec(ctx, alloc, task, "/bin/gpuprobe", "-once")
	if err != nil {
		return probe.Report{}, err
	}
	line, _, err := bufio.NewReader(bytes.NewReader(out)).ReadLine()
	if err != nil {
		return probe.Report{}, fmt.Errorf("read report of exec session: %w", err)
	}
	return probe.Parse(line)
}

// Exec runs a program in a task's container and returns its output.
func (c *Cluster) Exec(ctx context.Context, alloc *api.Allocation, task string, argv ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	code, err := c.API.Allocations().Exec(ctx, alloc, task, false, argv, bytes.NewReader(nil), &stdout, &stderr, nil, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("exec %v in %s: %w", argv, task, err), errors.New(stdout.String()+stderr.String()))
	}
	return stdout.Bytes(), nil
}
