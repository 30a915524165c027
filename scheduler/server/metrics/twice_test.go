// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view/viewtest"
)

// A machine that was installed anew is two nodes of one name for a while, one of them down:
// its GPUs are told of once, as they are in the one that is ready, and a GPU that only the other
// one has is told of as well.
func TestTwoNodesOfOneName(t *testing.T) {
	for _, down := range []string{"the first", "the second"} {
		c := viewtest.Small()
		want := strings.Join(ofNodes(scrape(t, c, nil)), "")
		other := c.Nodes[0]
		other.ID, other.Status = "another", "down"
		gone := other.GPUs[0]
		gone.UUID = "GPU-gone"
		other.GPUs = append(slices.Clone(other.GPUs), gone)
		for i := range other.GPUs {
			other.GPUs[i].Healthy, other.GPUs[i].Holders = false, nil
		}
		if c.Nodes = append(c.Nodes, other); down == "the first" {
			c.Nodes = append([]view.Node{other}, c.Nodes[:len(c.Nodes)-1]...)
		}
		got := slices.DeleteFunc(ofNodes(scrape(t, c, nil)), func(line string) bool { return strings.Contains(line, gone.UUID) })
		if strings.Join(got, "") != want {
			t.Errorf("%s is down:\n%s, want\n%s", down, strings.Join(got, ""), want)
		}
		if text := scrape(t, c, nil); !strings.Contains(text, `nomad_gpu_device_healthy{node="gpu-node-1",uuid="GPU-gone"} 0`) {
			t.Errorf("%s is down: what only the other has is not told", down)
		}
	}
}

// ofNodes are the lines that name a node.
func ofNodes(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, `node="`) {
			lines = append(lines, line)
		}
	}
	return lines
}
