// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

const validateJobHelp = `Checks the config blocks of a job's tasks for this driver, without Nomad: what
nomad job run accepts, and the node refuses when the task starts. FILE is a job
in HCL or JSON, "-" the standard input.

What tasks may ask for is up to the node: -config names the configuration of its
agent; without it the driver's defaults hold. Values with ${...} are checked when
the task starts.

Every mistake is named with its group, task, key and value. The exit code is 0
when there is none, and 1 when there is one.`

func runValidateJob(args []string, stdout, stderr io.Writer) int {
	fs := command.NewFlags(config.PluginName, "validate-job FILE", validateJobHelp, stderr)
	node := fs.String("config", "", "configuration of Nomad's agent on the nodes: a `file` or folder")
	vars := variables{}
	fs.Var(&vars, "var", "`key=value` for a variable of the job; may be repeated")
	files := variables{}
	fs.Var(&files, "var-file", "`file` with variables of the job; may be repeated")
	if code, done := command.ParseArguments(fs, args, 1, 1, stdout); done {
		return code
	}
	settings, err := config.Read(*node)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	job, err := readJob(fs.Arg(0), vars, files)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	body, err := json.Marshal(map[string]any{"Job": job})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.ExitError
	}
	mistakes, tasks := taskconfig.Job(body, taskconfig.Strict(settings.Policy))
	for _, m := range mistakes {
		fmt.Fprintln(stderr, m)
	}
	switch {
	case len(mistakes) > 0:
		return command.ExitError
	case tasks == 0:
		fmt.Fprintf(stdout, "The job has no task with driver = %q.\n", gpu.DriverName)
	default:
		fmt.Fprintf(stdout, "The config of %d tasks is valid.\n", tasks)
	}
	return command.ExitOK
}

// readJob reads a job as nomad job run does; JSON may have it under the name Job.
func readJob(path string, vars, files []string) (*api.Job, error) {
	text, err := os.ReadFile(path)
	if path == "-" {
		text, err = io.ReadAll(os.Stdin)
	}
	if err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	var job *api.Job
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var wrapped struct{ Job *api.Job }
		if err = json.Unmarshal(text, &wrapped); err == nil && wrapped.Job == nil {
			err = json.Unmarshal(text, &wrapped.Job)
		}
		job = wrapped.Job
	} else {
		job, err = jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: text, ArgVars: vars, VarFiles: files, Envs: os.Environ(), AllowFS: true, Strict: true})
	}
	if err != nil {
		return nil, fmt.Errorf("parse job: %w", err)
	}
	job.Canonicalize()
	return job, nil
}

// variables are an option that may be repeated.
type variables []string

func (v *variables) String() string { return "" }

// Set takes one more.
func (v *variables) Set(text string) error {
	*v = append(*v, text)
	return nil
}
