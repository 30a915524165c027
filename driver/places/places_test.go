// SPDX-License-Identifier: MPL-2.0

package places

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/shoenig/test/must"
)

// TestPlacesAreBounded: of all, of a namespace half and of a job a quarter, so that none
// keeps all others from starting.
func TestPlacesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(8)
		var mu sync.Mutex
		var gives []func()
		have := map[string]int{}
		take := func(ctx context.Context, namespace, job string) {
			go func() {
				give, err := p.Take(ctx, namespace, job)
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				have[namespace+"/"+job]++
				gives = append(gives, give)
			}()
		}
		for range 5 {
			take(t.Context(), "hostile", "a")
		}
		synctest.Wait()
		must.Eq(t, map[string]int{"hostile/a": 2}, have)
		for _, job := range []string{"b", "c"} {
			take(t.Context(), "hostile", job)
			take(t.Context(), "hostile", job)
			synctest.Wait()
		}
		must.Eq(t, map[string]int{"hostile/a": 2, "hostile/b": 2}, have)
		ctx, cancel := context.WithCancel(t.Context())
		for _, job := range []string{"a", "b", "c"} { // of the same names, and others'
			take(ctx, "good", job)
			take(ctx, "good", job)
			synctest.Wait()
		}
		must.Eq(t, map[string]int{"hostile/a": 2, "hostile/b": 2, "good/a": 2, "good/b": 2}, have)
		cancel() // those that wait give up
		for _, give := range gives[:2] {
			give()
			give() // once
		}
		synctest.Wait()
		must.Len(t, 10, gives)
		for _, give := range gives[2:] {
			give()
		}
		synctest.Wait()
		for _, give := range gives[10:] {
			give()
		}
		synctest.Wait()
		must.Eq(t, 5, have["hostile/a"])
		must.Eq(t, 2, have["hostile/c"])
		for _, give := range gives {
			give()
		}
		must.Zero(t, p.Taken())
		must.MapEmpty(t, p.taken)
	})
}

// A limit that is raised gives places to those that wait, without another's end.
func TestWhoWaitsSeesAHigherLimit(t *testing.T) {
	for _, higher := range []int{2, 0} {
		synctest.Test(t, func(t *testing.T) {
			p := New(1)
			_, err := p.Take(t.Context(), "", "first")
			must.NoError(t, err)
			var has atomic.Bool
			go func() {
				_, err := p.Take(t.Context(), "other", "second")
				has.Store(err == nil)
			}()
			synctest.Wait()
			must.False(t, has.Load())
			p.SetLimit(higher)
			synctest.Wait()
			must.True(t, has.Load(), must.Sprintf("a limit of %d is not seen", higher))
		})
	}
}

// Of no places at all, as of a limit of 0, there is no end.
func TestWithoutALimit(t *testing.T) {
	for _, p := range []*Places{nil, New(0)} {
		for range 1000 {
			_, err := p.Take(t.Context(), "namespace", "job")
			must.NoError(t, err)
		}
	}
}
