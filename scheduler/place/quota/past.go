// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"maps"
	"math"
	"time"
)

// Use is what a queue held over time; use counts half after each half-life.
type Use struct {
	MilliSeconds float64 `json:"milli_s"`
	MiBSeconds   float64 `json:"mib_s"`
}

// Past is what queues held over time, as of its last [Past.Account]. The zero Past
// keeps nothing.
type Past struct {
	halfLife time.Duration
	at       time.Time
	held     map[string]Use // without that of queues below
}

// NewPast keeps use with a half-life; 0 keeps nothing.
func NewPast(halfLife time.Duration) *Past {
	return &Past{halfLife: halfLife, held: map[string]Use{}}
}

// RestorePast goes on from the stored state of an earlier one.
func RestorePast(halfLife time.Duration, held map[string]Use, at time.Time) *Past {
	p := NewPast(halfLife)
	if halfLife > 0 {
		p.at = at
		maps.Copy(p.held, held)
	}
	return p
}

// HalfLife is the time after which use counts half.
func (p *Past) HalfLife() time.Duration { return p.halfLife }

// Stored is what [RestorePast] takes.
func (p *Past) Stored() (held map[string]Use, at time.Time) { return maps.Clone(p.held), p.at }

// worth is the least use that is remembered: a GPU for a second.
const worth = 1000

// Account adds what the books say is held now for the time since the last call.
func (p *Past) Account(q *Quotas, b Books, now time.Time) {
	since := now.Sub(p.at)
	if p.halfLife <= 0 || since <= 0 {
		return
	}
	first := p.at.IsZero()
	p.at = now
	if first {
		return
	}
	left := math.Exp2(-since.Seconds() / p.halfLife.Seconds())
	added := (1 - left) * p.life()
	for _, name := range q.names {
		held, was := b.Held(name), p.held[name]
		use := Use{was.MilliSeconds*left + float64(held.Milli)*added, was.MiBSeconds*left + float64(held.MemoryMiB)*added}
		if use.MilliSeconds < worth && use.MiBSeconds < worth && held == (Charge{}) {
			delete(p.held, name)
			continue
		}
		p.held[name] = use
	}
}

// life is for how many seconds a constant use counts.
func (p *Past) life() float64 { return p.halfLife.Seconds() / math.Ln2 }

// Mean is what a queue and its descendants held in the mean; nothing where no past is
// kept.
func (p *Past) Mean(q *Quotas, name string) Charge {
	if p == nil || p.halfLife <= 0 {
		return Charge{}
	}
	var sum Use
	for _, o := range q.names {
		if use, kept := p.held[o]; kept && q.isWithin(o, name) {
			sum = Use{sum.MilliSeconds + use.MilliSeconds, sum.MiBSeconds + use.MiBSeconds}
		}
	}
	return Charge{int64(sum.MilliSeconds / p.life()), int64(sum.MiBSeconds / p.life())}
}
