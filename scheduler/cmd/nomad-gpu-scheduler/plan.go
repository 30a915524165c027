// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/terminal"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
)

const planHelp = `Says where a job would go and why, and what would change. Nothing is submitted.`

// planAnswer is what the service says to a plan.
type planAnswer struct {
	JobModifyIndex uint64
	Diff           *api.JobDiff                     `json:",omitempty"`
	FailedTGAllocs map[string]*api.AllocationMetric `json:",omitempty"`
	Warnings       string
	GPUGroups      []server.Group
}

type planOptions struct {
	online
	jobFile
}

func runPlan(args []string, stdout, stderr io.Writer) int {
	o := planOptions{online: online{stdout: stdout, stderr: stderr}}
	fs := newFlags("plan <job file>", planHelp, stderr)
	o.jobFile.flags(fs)
	if code, done := o.parse(fs, args, 1); done {
		return code
	}
	client, err := o.client()
	if err != nil {
		return o.fail(err)
	}
	answer, err := o.plan(client)
	if err != nil {
		return o.fail(err)
	}
	names := nodeNames(client)
	return o.finish(answer, func(w io.Writer) error { return answer.print(w, o.id, names) }, nil)
}

func (o *planOptions) plan(client *api.Client) (*planAnswer, error) {
	if err := o.read(client, o.args[0]); err != nil {
		return nil, err
	}
	body := struct {
		Job  json.RawMessage
		Diff bool
	}{o.job, true}
	var answer planAnswer
	path := "/v1/job/" + url.PathEscape(o.id) + "/plan"
	if _, err := client.Raw().Write(path, body, &answer, &api.WriteOptions{Namespace: cmp.Or(o.given, o.own)}); err != nil {
		return nil, fmt.Errorf("plan job %q: %w", o.id, err)
	}
	return &answer, nil
}

func (a *planAnswer) print(w io.Writer, id string, names map[string]string) error {
	terminal.Printf(w, "Job %q: %s\n", id, a.change())
	if err := printGroups(w, a.GPUGroups, names); err != nil {
		return err
	}
	for _, group := range slices.Sorted(maps.Keys(a.FailedTGAllocs)) {
		m := a.FailedTGAllocs[group]
		terminal.Printf(w, "\nGroup %q would wait: Nomad finds no room on %s\n", group, nodes(m.NodesEvaluated))
		for _, why := range slices.Sorted(maps.Keys(m.ConstraintFiltered)) {
			terminal.Printf(w, "  %s: %s\n", nodes(m.ConstraintFiltered[why]), why)
		}
		for _, what := range slices.Sorted(maps.Keys(m.DimensionExhausted)) {
			terminal.Printf(w, "  %s: %s\n", nodes(m.DimensionExhausted[what]), what)
		}
	}
	terminal.Printf(w, "\nTo submit it if nothing changes meanwhile: run -check-index %d\n", a.JobModifyIndex)
	return nil
}

// changes are the words for what Nomad calls a diff.
var changes = map[string]string{
	"None": "nothing changes", "Added": "it is new", "Edited": "it changes", "Deleted": "it stops",
}

func (a *planAnswer) change() string {
	if a.Diff == nil {
		return "planned"
	}
	if word, ok := changes[a.Diff.Type]; ok {
		return word
	}
	return a.Diff.Type
}
