package main

import (
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// freshness is how old a picture may be. Drawing one of a large cluster costs
// milliseconds, and a page that many people watch asks often.
const freshness = 500 * time.Millisecond

// gallery keeps the newest picture.
type gallery struct {
	book   *decide.Book
	leader func() (address string, self bool)

	mu      sync.Mutex
	picture *view.Cluster
	version uint64
	drawn   time.Time
}

// View returns the newest picture. It is drawn again when something changed,
// though not more often than freshness.
func (g *gallery) View() (*view.Cluster, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	version := g.book.Version()
	if g.picture != nil && time.Since(g.drawn) < freshness {
		return g.picture, nil
	}
	if g.picture == nil || version != g.version {
		picture, err := g.book.Picture()
		if err != nil {
			return nil, err
		}
		g.picture, g.version = picture, version
	} else {
		again := *g.picture
		g.picture = &again
		g.picture.At, g.picture.Synced = time.Now(), g.book.Synced()
	}
	g.drawn = time.Now()
	g.picture.Leader, g.picture.Leading = g.leader()
	return g.picture, nil
}
