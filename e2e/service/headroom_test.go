// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// TestASmallJobLeavesTheLastWholeNode has large jobs come and go, and looks that a small one
// then leaves them the only whole node until it has waited long enough.
func TestASmallJobLeavesTheLastWholeNode(t *testing.T) {
	t.Parallel()
	ctx, c := startNodes(t, cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "dgx-v100.hcl"), GPUs: cut})
	const wait = 20 * time.Second
	r := serve(ctx, t, c, fmt.Sprintf("placement {\n headroom_wait = %q\n}\n", wait))
	for i := range 8 {
		id := fmt.Sprint("large-", i)
		admitted(ctx, t, r, job{id: id, meta: map[string]string{"gpu": "4"}})
		runs(ctx, t, c.API, id, 1)
		if err := c.Stop(ctx, id); err != nil {
			t.Fatal(err)
		}
		until(ctx, t, "end "+id, 30*time.Second, func() (bool, string) {
			return len(allocs(ctx, t, c.API, "default", id)) == 0, "it has allocs"
		})
	}
	// The service hears of the last one's end a moment later.
	until(ctx, t, "the service sees the room", 30*time.Second, func() (bool, string) {
		for _, node := range pictureOf(ctx, t, r).Nodes {
			for _, gpu := range node.GPUs {
				if !gpu.Idle() {
					return false, fmt.Sprint(gpu.Holders)
				}
			}
		}
		return true, ""
	})
	begin := time.Now()
	if err := submit(ctx, r.API, job{id: "small", meta: map[string]string{"gpu": "1"}}); err != nil {
		t.Fatal(err)
	}
	registered, _, err := c.API.Jobs().Info("small", nil)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, constraint := range registered.TaskGroups[0].Constraints {
		text += constraint.LTarget
	}
	if !strings.Contains(text, "headroom: jobs for 4 GPUs of a node come often, and 1 place for one is left") {
		t.Fatalf("the small job's constraints do not say why it waits: %q", text)
	}
	runs(ctx, t, c.API, "small", 1)
	if took := time.Since(begin); took < wait-2*time.Second {
		t.Errorf("the small job started after %s already", took.Round(time.Second))
	} else {
		t.Logf("the small job started after %s", took.Round(time.Second))
	}
	doubleBooked(ctx, t, c.API)
}
