// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Nothing is evicted here: fair is what waits, not what runs.
const fairQueues = `
preemption {
  enabled = false
}
queue "greedy" {
  gpus       = %d
  namespaces = ["greedy"]
}
queue "modest" {
  gpus       = %d
  namespaces = ["modest"]
}
`

// TestTeamsConvergeToTheirShares has a greedy team fill four GPUs and queue far more
// than fits, and a modest one come later, on a real Nomad, which by itself starts what
// came first. From the modest team's first start to its last, while both wait, each has
// its share of the time that the GPUs are held. Jobs take 15 to 45 seconds: where all end
// in the same moment, all that comes free then goes to whoever holds less.
func TestTeamsConvergeToTheirShares(t *testing.T) {
	if os.Getenv("NOMAD_GPU_LONG") == "" {
		t.Skip("takes five minutes, since what is fair shows over many jobs that take their time: make test-fairness")
	}
	for _, row := range []struct{ greedy, modest, jobs int }{{2, 2, 16}, {3, 1, 8}} {
		t.Run(fmt.Sprintf("%d to %d", row.greedy, row.modest), func(t *testing.T) {
			t.Parallel()
			ctx, c := start(t, 2)
			for _, name := range []string{"greedy", "modest"} {
				if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
					t.Fatal(err)
				}
			}
			r := serve(ctx, t, c, fmt.Sprintf(fairQueues, row.greedy, row.modest))
			whole := func(team string, i int) job {
				return job{id: fmt.Sprintf("%s-%02d", team, i), namespace: team, kind: "batch", seconds: 15 + 13*i%31, meta: map[string]string{"gpu": "1"}}
			}
			for i := range 60 {
				admitted(ctx, t, r, whole("greedy", i))
			}
			for i := range row.jobs {
				admitted(ctx, t, r, whole("modest", i))
			}
			until(ctx, t, "run the modest team's jobs", 15*time.Minute, func() (bool, string) {
				spans := spansOf(ctx, t, c, "modest")
				ended := 0
				for _, s := range spans {
					if !s.end.IsZero() {
						ended++
					}
				}
				return ended == row.jobs, fmt.Sprintf("%d of %d ended", ended, row.jobs)
			})
			modest, greedy := spansOf(ctx, t, c, "modest"), spansOf(ctx, t, c, "greedy")
			from, to := modest[0].begin, modest[0].begin
			for _, s := range modest {
				from, to = earlier(from, s.begin), later(to, s.begin)
			}
			window := to.Sub(from).Seconds()
			has := func(spans []span) float64 {
				sum := 0.0
				for _, s := range spans {
					end := to
					if !s.end.IsZero() {
						end = earlier(s.end, to)
					}
					sum += max(0, end.Sub(later(s.begin, from)).Seconds())
				}
				return sum / window
			}
			m, g := has(modest), has(greedy)
			t.Logf("%.0f s, from the modest team's first start to its last: greedy held %.2f GPUs, modest %.2f", window, g, m)
			want := float64(row.modest) / 4
			if part := m / (m + g); part < want-0.15 || part > want+0.15 {
				t.Errorf("the modest team held %.2f of what was held, its share is %.2f", part, want)
			}
			doubleBooked(ctx, t, c.API)
		})
	}
}

// span is from when to when an alloc held its GPU; it may still.
type span struct{ begin, end time.Time }

func spansOf(ctx context.Context, t *testing.T, c *cluster.Cluster, namespace string) []span {
	t.Helper()
	list, _, err := c.API.Allocations().List((&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	var spans []span
	for _, a := range list {
		s := span{begin: time.Unix(0, a.CreateTime)}
		if cluster.Terminal(a) {
			s.end = time.Unix(0, a.ModifyTime)
			for _, task := range a.TaskStates {
				s.end = task.FinishedAt
			}
		}
		spans = append(spans, s)
	}
	return spans
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
