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
var root = filepath.Dir(must(os.Getwd()))

func TestMain(m *testing.M) {
	build := exec.Command("make", "--no-print-directory", "-s", "prepare", "build")
	build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build what the end-to-end tests run:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// deadline is the longest that any one test may take.
const deadline = 4 * time.Minute

// start runs a cluster for one test.
func start(t *testing.T, nodes ...cluster.NodeOptions) (context.Context, *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cluster.Options{Bin: filepath.Join(root, "bin"), Nodes: nodes, Progress: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, c
}

// topology names one of the machines in e2e/topology.
func topology(name string) string { return filepath.Join(root, "e2e", "topology", name+".hcl") }
