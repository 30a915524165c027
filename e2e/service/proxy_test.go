// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	list "slices" // the package has a constant of that name
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// admits waits until a new replica decides.
func admits(ctx context.Context, t *testing.T, r *replica) {
	t.Helper()
	until(ctx, t, "plan a first job", 30*time.Second, func() (bool, string) {
		j := job{id: "warm-up", meta: map[string]string{"gpu": "1G"}}
		_, _, err := r.API.Jobs().Plan(j.api(), false, (&api.WriteOptions{}).WithContext(ctx))
		return err == nil, fmt.Sprint(err)
	})
}

// nomad runs Nomad's own command against an address.
func nomad(ctx context.Context, t *testing.T, address string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "e2e", "nomad"), args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+address, "NOMAD_CLI_NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("nomad %s: %v", strings.Join(args, " "), err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

const sleeper = `job "team/sleeper" {
  group "g" {
    count = 1
    task "t" {
      driver = "raw_exec"
      meta {
        gpu = "4G,0.25"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do echo tick; sleep 0.1; done"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
`

// wholes make jobs of the parts of jobs that documents show, by the word that those begin
// with.
var wholes = map[string]string{
	"group":  "job \"document\" {\n%s}\n",
	"meta":   "job \"document\" {\n%s}\n",
	"task":   "job \"document\" {\ngroup \"g\" {\n%s}\n}\n",
	"device": "job \"document\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = \"containerd\"\nresources {\n%s}\n}\n}\n}\n",
}

// documentsAreValid has Nomad parse and validate each whole job of the documents, and parse
// each part of one.
func documentsAreValid(t *testing.T, nomad *api.Client) {
	for _, block := range documents.HCL(t, root, list.Collect(maps.Keys(wholes))...) {
		if _, err := nomad.Jobs().ParseHCL(fmt.Sprintf(wholes[documents.FirstWord(block)], block.Text), true); err != nil {
			t.Errorf("%s:%d: %v", block.Path, block.Line, err)
		}
	}
	for _, block := range documents.HCL(t, root, "job") {
		job, err := nomad.Jobs().ParseHCL(block.Text, true)
		if err != nil {
			t.Errorf("%s:%d: %v", block.Path, block.Line, err)
			continue
		}
		if _, err := nomad.Namespaces().Register(&api.Namespace{Name: *job.Namespace}, nil); err != nil {
			t.Fatal(err)
		}
		answer, _, err := nomad.Jobs().Validate(job, nil)
		if err != nil || len(answer.ValidationErrors) > 0 {
			t.Errorf("%s:%d: %v, %+v", block.Path, block.Line, err, answer)
		}
	}
}

// TestNomadCommand has Nomad's own command line, streams and UI go through the
// service.
func TestNomadCommand(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	t.Run("jobs in documents are valid", func(t *testing.T) { documentsAreValid(t, c.API) })
	file := filepath.Join(t.TempDir(), "sleeper.hcl")
	if err := os.WriteFile(file, []byte(sleeper), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.hcl")
	if err := os.WriteFile(bad, []byte(strings.Replace(sleeper, "4G,0.25", "4GB", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	expect := func(code int, text string, args ...string) string {
		t.Helper()
		got, out := nomad(ctx, t, r.URL, args...)
		if got != code || !strings.Contains(out, text) {
			t.Errorf("nomad %s: exit %d, want %d with %q:\n%s", strings.Join(args, " "), got, code, text, out)
		}
		return out
	}
	expect(1, "goes to node-0", "job", "plan", file)
	expect(0, "Job validation successful", "job", "validate", file)
	expect(1, "is decimal", "job", "validate", bad)
	expect(255, "is decimal", "job", "plan", bad)
	expect(1, "400 (group", "job", "run", bad)
	expect(0, "successful", "job", "run", file)
	alloc := runs(ctx, t, c.API, "team/sleeper", 1)[0]
	expect(0, "1 ignore", "job", "plan", file)
	expect(0, "hello", "alloc", "exec", alloc.ID, "/bin/echo", "hello")
	expect(0, "tick", "alloc", "logs", "-n", "1", alloc.ID)
	expect(0, "gpu = \"4G,0.25\"", "job", "inspect", "-hcl", "team/sleeper")
	followLogs(ctx, t, r, alloc.ID)
	followEvents(ctx, t, r)
	if hasUI(ctx, t, c.URL) {
		for _, path := range []string{"/", "/ui/", "/ui/jobs"} {
			if status, body := get(ctx, t, r.URL+path); status != http.StatusOK || !strings.Contains(body, "<title>Nomad</title>") {
				t.Errorf("%s: %d %.80s", path, status, body)
			}
		}
	}
	expect(0, "", "job", "stop", "-purge", "team/sleeper")
}

// hasUI reports whether Nomad's pages are in this build of it.
func hasUI(ctx context.Context, t *testing.T, nomad string) bool {
	t.Helper()
	_, body := get(ctx, t, nomad+"/ui/")
	return !strings.Contains(body, "Nomad UI is not available in this binary")
}

func get(ctx context.Context, t *testing.T, address string) (int, string) {
	t.Helper()
	return getAs(ctx, t, address, "")
}

func getAs(ctx context.Context, t *testing.T, address, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("X-Nomad-Token", token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// followLogs wants lines as they are written, not when the stream ends.
func followLogs(ctx context.Context, t *testing.T, r *replica, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	alloc, _, err := r.API.Allocations().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	frames, errs := r.API.AllocFS().Logs(alloc, true, "t", "stdout", "end", 0, stop, nil)
	for range 3 {
		select {
		case <-ctx.Done():
			t.Fatal("no log lines arrive while they are written")
		case err := <-errs:
			t.Fatal(err)
		case f := <-frames:
			if !bytes.Contains(f.Data, []byte("tick")) && !f.IsHeartbeat() {
				t.Errorf("frame %q", f.Data)
			}
		}
	}
}

// followEvents wants an event while the stream is open.
func followEvents(ctx context.Context, t *testing.T, r *replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	events, err := r.API.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicJob: {"*"}}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := submit(ctx, r.API, job{id: "seen", meta: map[string]string{"gpu": "1G"}}); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case <-ctx.Done():
			t.Fatal("no event arrives")
		case e := <-events:
			if list.ContainsFunc(e.Events, func(e api.Event) bool { return e.Key == "seen" }) {
				return
			}
		}
	}
}
