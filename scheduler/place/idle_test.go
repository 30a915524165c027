// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Whoever holds what: a request that only idle work may go for gets a place exactly where it
// would have one with all of that gone, and nothing else goes.
func TestOnlyIdleWorkGoes(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		p := testPlanner(t, testNode("a", "A100", 1+random.IntN(2)), testNode("b", "A100", 1))
		gone := testPlanner(t, p.snap.Nodes["a"].Spec, p.snap.Nodes["b"].Spec)
		held := map[string]Usage{}
		for i := range 1 + random.IntN(8) {
			r := ask(t, fmt.Sprintf("u%d", i), fmt.Sprintf("%dG", 1+random.IntN(80)))
			pl, err := p.Place(&r)
			if err != nil {
				continue
			}
			u := pl.Usage
			u.Priority, u.Reclaim, u.Pinned = random.IntN(100), random.IntN(2) == 0, random.IntN(5) == 0
			u.Start, u.Job = now.Add(-time.Duration(random.IntN(3))*time.Hour), fmt.Sprintf("job-%d", random.IntN(3))
			if random.IntN(4) == 0 {
				u.MinRun = time.Hour + time.Minute
			}
			if err := p.snap.Apply(u); err != nil {
				t.Fatal(err)
			}
			held[u.ID] = u
		}
		r := ask(t, "new", fmt.Sprintf("%dG", 1+random.IntN(80)))
		r.Job, r.Priority, r.OnlyIdle = "job-0", random.IntN(100), true
		mayGo := func(u Usage) bool {
			return u.Reclaim && !u.Pinned && u.Job != "job-0" && !(u.MinRun > 0 && now.Before(u.Start.Add(u.MinRun)))
		}
		for _, u := range held {
			if !mayGo(u) {
				if err := gone.snap.Apply(u); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, never := gone.Place(&r)
		plan, err := p.Preempt([]Request{r}, now)
		switch {
		case err != nil && !errors.Is(err, ErrNoRoom):
			t.Fatal(err)
		case (err == nil) != (never == nil):
			t.Fatalf("seed %d: %v, and with all idle work gone %v", seed, err, never)
		}
		for _, u := range plan.Victims {
			if !mayGo(held[u.ID]) {
				t.Fatalf("seed %d: %+v had to go", seed, u)
			}
		}
	}
}
