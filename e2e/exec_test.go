// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// A "nomad alloc exec" that is killed tells no one, and its command, which
// writes nothing, would run on with the GPU.
func TestKilledExecEndsItsCommand(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	alloc := run(t, ctx, c, jobSpec{id: "job", devices: slicesOf(1)})
	session := exec.CommandContext(ctx, filepath.Join(root, "bin", "e2e", "nomad"), "alloc", "exec", "-address", c.URL, "-i=false",
		"-task", "task", alloc.ID, "/bin/gpuprobe", "-exit", "77")
	if err := session.Start(); err != nil {
		t.Fatal(err)
	}
	waitProcesses(t, ctx, c.Nodes[0], 1, "gpuprobe", "-exit 77")
	select { // until Nomad's command has sent a heartbeat, which it does every ten seconds
	case <-time.After(25 * time.Second):
	case <-ctx.Done():
	}
	waitProcesses(t, ctx, c.Nodes[0], 1, "gpuprobe", "-exit 77")
	if err := session.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = session.Wait() // it was killed
	waitProcesses(t, ctx, c.Nodes[0], 0, "gpuprobe", "-exit 77")
}

// waitProcesses waits until a node has so many processes whose command line has all the
// words.
func waitProcesses(t *testing.T, ctx context.Context, n *cluster.Node, want int, words ...string) {
	t.Helper()
	for {
		found, err := n.PIDs(words...)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == want {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%d processes of %v are there, want %d", len(found), words, want)
		}
	}
}
