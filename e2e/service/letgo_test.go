// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// documented is the command that a document shows and that begins so, without its
// prompt.
func documented(t *testing.T, path, begins string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "```console\n$ "+begins)
	command, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatalf("%s shows no command that begins %q", path, begins)
	}
	return begins + command
}

// TestHeldJobIsLetGoWithoutTheService has a job wait for quota, kills the service,
// and lets the job go with the command that the guide gives.
func TestHeldJobIsLetGoWithoutTheService(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("no jq:", err)
	}
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, `
queue "small" {
  gpus       = 1
  borrow     = false
  namespaces = ["default"]
}`)
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "first", 1)
	waiting := job{id: "waiting", meta: map[string]string{"gpu": "1"}}.api()
	waiting.AddTaskGroup(withoutGPU())
	if _, _, err := r.API.Jobs().Register(waiting, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	if live := runs(ctx, t, c.API, "waiting", 1); live[0].TaskGroup != "plain" {
		t.Fatalf("group %s does not wait for quota", live[0].TaskGroup)
	}
	r.kill(syscall.SIGTERM)

	command := strings.ReplaceAll(documented(t, "docs/service.md", "nomad job inspect"), "JOB", "waiting")
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-ec", command)
	shell.Env = append(os.Environ(), "NOMAD_ADDR="+c.URL, "PATH="+filepath.Join(root, "bin", "e2e")+":"+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, command, out)
	}
	runs(ctx, t, c.API, "waiting", 2)
	doubleBooked(ctx, t, c.API)
}

// withoutGPU is a group that nothing holds.
func withoutGPU() *api.TaskGroup {
	task := api.NewTask("sleep", "raw_exec").SetConfig("command", "sleep").SetConfig("args", []string{"100000"})
	return api.NewTaskGroup("plain", 1).AddTask(task)
}
