// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
)

const runHelp = `Submits a job through the placement service and says what was decided. It is
"nomad job run" for people who do not point NOMAD_ADDR at the service.`

// runOptions are the options of run.
type runOptions struct {
	online
	jobFile
	checkIndex     int64
	preserveCounts bool
}

func (o *runOptions) declare(fs *flag.FlagSet) {
	o.jobFile.flags(fs)
	fs.Int64Var(&o.checkIndex, "check-index", -1, "submit only if the job's modify `index` is this; 0: only if there is no such job")
	fs.BoolVar(&o.preserveCounts, "preserve-counts", false, "keep the registered job's counts")
}

// registerBody is the request to Nomad's job route.
type registerBody struct {
	Job            json.RawMessage
	Submission     *api.JobSubmission `json:",omitempty"`
	EnforceIndex   bool               `json:",omitempty"`
	JobModifyIndex uint64             `json:",omitempty"`
	PreserveCounts bool               `json:",omitempty"`
}

// registerAnswer is what the service says to it.
type registerAnswer struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	GPUGroups       []server.Group
}

func runRun(args []string, stdout, stderr io.Writer) int {
	o := runOptions{online: online{stdout: stdout, stderr: stderr}}
	fs := newFlags("run <job file>", runHelp, stderr)
	o.declare(fs)
	if code, done := o.parse(fs, args, 1); done {
		return code
	}
	client, err := o.client()
	if err != nil {
		return o.fail(err)
	}
	answer, err := o.submit(client)
	if err != nil {
		return o.fail(err)
	}
	names := nodeNames(client)
	return o.finish(answer, func(w io.Writer) error {
		fmt.Fprintf(w, "Job %q is submitted", o.id)
		if answer.EvalID != "" {
			fmt.Fprintf(w, ", evaluation %s", short(answer.EvalID))
		}
		fmt.Fprint(w, "\n")
		return printGroups(w, answer.GPUGroups, names)
	}, nil)
}

func (o *runOptions) submit(client *api.Client) (*registerAnswer, error) {
	if err := o.read(client, o.args[0]); err != nil {
		return nil, err
	}
	body := registerBody{Job: o.job, Submission: o.submission, PreserveCounts: o.preserveCounts}
	if o.checkIndex >= 0 {
		body.EnforceIndex, body.JobModifyIndex = true, uint64(o.checkIndex)
	}
	var answer registerAnswer
	if _, err := client.Raw().Write("/v1/jobs", body, &answer, &api.WriteOptions{Namespace: cmp.Or(o.given, o.own)}); err != nil {
		return nil, fmt.Errorf("submit job %q: %w", o.id, err)
	}
	return &answer, nil
}
