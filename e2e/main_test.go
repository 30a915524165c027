// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// root is the repository: tests run in their package's folder.
var root, _ = filepath.Abs("..")

func TestMain(m *testing.M) {
	build := exec.Command("make", "--no-print-directory", "-s", "prepare", "build")
	build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build what the end-to-end tests run:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// deadline is the longest that any one test may take.
const deadline = 8 * time.Minute

// sliced offers every GPU in slices of 1 GiB, kept apart by MPS.
const sliced = `
    mode    = "slice"
    sharing = "mps"
`

// start runs a cluster for one test.
func start(t *testing.T, nodes ...cluster.NodeOptions) (context.Context, *cluster.Cluster) {
	t.Helper()
	return startWith(t, cluster.Options{Nodes: nodes})
}

func startWith(t *testing.T, o cluster.Options) (context.Context, *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	o.Bin = filepath.Join(root, "bin")
	c, err := cluster.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
			defer cancel()
			t.Log(c.Diagnosis(ctx))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, c
}

// h100 makes the topology of a machine with count H100 of 79 slices each.
func h100(t *testing.T, count int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h100.hcl")
	text := fmt.Sprintf("machine \"m\" {}\ngpu {\n  model = \"H100\"\n  count = %d\n}\n", count)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
