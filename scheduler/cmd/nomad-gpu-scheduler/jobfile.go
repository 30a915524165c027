// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// jobFile is a job on its way from a file to Nomad.
type jobFile struct {
	variables variables
	varFiles  paths
	// job is the job's JSON as Nomad parsed it, with every field that Nomad
	// knows, whether or not this program does.
	job json.RawMessage
	id  string
	// own is the namespace that the file names; it comes after the option's
	// and before the environment's.
	own        string
	submission *api.JobSubmission
}

func (f *jobFile) flags(fs *flag.FlagSet) {
	f.variables = variables{}
	fs.Var(f.variables, "var", "`key=value` for a variable of the job; may be repeated")
	fs.Var(&f.varFiles, "var-file", "`file` with variables of the job; may be repeated")
}

// read reads a job in HCL or JSON; "-" is the standard input. Nomad parses the
// HCL, so that every version of Nomad gets its own dialect.
func (f *jobFile) read(client *api.Client, path string) error {
	text, err := readAll(path)
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
		return f.readJSON(text)
	}
	variables, err := f.variableText()
	if err != nil {
		return fmt.Errorf("read variables: %w", err)
	}
	request := &api.JobsParseRequest{JobHCL: string(text), Variables: variables}
	if _, err := client.Raw().Write("/v1/jobs/parse", request, &f.job, nil); err != nil {
		return fmt.Errorf("parse job: %w", err)
	}
	f.submission = &api.JobSubmission{Source: string(text), Format: "hcl2", Variables: variables}
	return f.identify()
}

// readJSON takes a job alone or, as "nomad job run -output" prints it, under
// the name Job.
func (f *jobFile) readJSON(text []byte) error {
	var wrapped struct{ Job json.RawMessage }
	if err := json.Unmarshal(text, &wrapped); err != nil {
		return fmt.Errorf("parse job: %w", err)
	}
	f.job = wrapped.Job
	if len(f.job) == 0 {
		f.job = text
	}
	f.submission = &api.JobSubmission{Source: string(text), Format: "json"}
	return f.identify()
}

func (f *jobFile) identify() error {
	var job struct{ ID, Namespace string }
	if err := json.Unmarshal(f.job, &job); err != nil {
		return fmt.Errorf("parse job: %w", err)
	}
	f.own = job.Namespace
	if f.id = job.ID; f.id == "" {
		return errors.New("parse job: it has no ID")
	}
	return nil
}

// variableText is the content of a variables file.
func (f *jobFile) variableText() (string, error) {
	var b strings.Builder
	for _, path := range f.varFiles {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	keys := make([]string, 0, len(f.variables))
	for key := range f.variables {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprintf(&b, "%s = %s\n", key, literal(f.variables[key]))
	}
	return b.String(), nil
}

// plainValue is what HCL reads as it stands; the rest is a string.
var plainValue = regexp.MustCompile(`^(true|false|null|-?[0-9]+(\.[0-9]+)?|\[.*\]|\{.*\}|".*")$`)

func literal(value string) string {
	if plainValue.MatchString(value) {
		return value
	}
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(value))
}

func readAll(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(path)
}

// variables is a flag that may be repeated: key=value.
type variables map[string]string

func (v variables) String() string { return "" }

// Set takes one variable.
func (v variables) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return fmt.Errorf("%q is not key=value", text)
	}
	v[key] = value
	return nil
}

// paths is a flag that may be repeated.
type paths []string

func (p *paths) String() string { return strings.Join(*p, ",") }

// Set takes one path.
func (p *paths) Set(text string) error {
	*p = append(*p, text)
	return nil
}
