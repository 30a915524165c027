// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// The release's image of the service runs under our own driver, as the example's job does
// with the program of a node.
func TestServiceImageRuns(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	made := exec.Command("go", "run", ".", "-only", "image", "-version", "1.2.3", "-arch", runtime.GOARCH, "-bin", filepath.Join(root, "bin"), "-out", out)
	made.Dir = filepath.Join(root, "internal", "release")
	if text, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	archive := must(os.ReadFile(filepath.Join(out, "nomad-gpu-scheduler_1.2.3_linux_"+runtime.GOARCH+".oci.tar")))
	ctx, c := startWith(t, 2, cluster.Options{ACLs: true, Images: [][]byte{archive}})
	if _, err := c.API.ACLPolicies().Upsert(&api.ACLPolicy{Name: "nomad-gpu-scheduler", Rules: ownPolicy(t),
		JobACL: &api.JobACL{Namespace: "default", JobID: "nomad-gpu-scheduler"}}, nil); err != nil {
		t.Fatal(err)
	}
	models := &api.Variable{Path: "nomad/jobs/nomad-gpu-scheduler", Items: api.VariableItems{"models": `"T4"`}}
	if _, _, err := c.API.Variables().Update(models, nil); err != nil {
		t.Fatal(err)
	}
	text := serviceJob(t, c)
	for old, now := range map[string]string{
		`driver = "raw_exec"`:         `driver = "containerd"`,
		`command = "` + program + `"`: "image = \"ghcr.io/nomad-gpu/nomad-gpu-scheduler:1.2.3\"\n        network_mode = \"host\"",
	} {
		if strings.Count(text, old) != 1 {
			t.Fatalf("the job does not say %q once:\n%s", old, text)
		}
		text = strings.Replace(text, old, now, 1)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Diagnosis(context.WithoutCancel(ctx)))
		}
	})
	if _, err := c.Run(ctx, text); err != nil {
		t.Fatal(err)
	}
	replica := asReplicas(ctx, t, c)[0]
	replica.API.SetSecretID(token(t, c.API, "alice", `namespace "default" { policy = "write" }`))
	admitted(ctx, t, replica, job{id: "first", meta: map[string]string{"gpu": "1G"}})
	runs(ctx, t, c.API, "first", 1)
}
