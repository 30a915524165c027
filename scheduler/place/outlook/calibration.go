// SPDX-License-Identifier: MPL-2.0

package outlook

import (
	"slices"
	"time"
)

// Calibration corrects estimates of starts by how far earlier ones were off, so that their
// ranges hold as often as they say, whatever the plays leave out: what arrives later, and
// lifetimes that change. It is conformal prediction: each end of a range is scaled by a
// quantile of what the same end was off by lately. The zero value corrects nothing yet.
type Calibration struct {
	sooner, later []float64 // actual waits over the ends of ranges, the newest last
	held          []bool    // whether the range held as it was told
}

const (
	// calibrated is from how many estimates on they are corrected, and lately how many of
	// the last count.
	calibrated, lately = 20, 200
	// tail is the part of starts that may be sooner than a range, and that may be later.
	tail = 0.04
	// grace is added to times before they are compared, so that seconds do not count
	// beside the seconds in which Nomad starts anything.
	grace = 10 * time.Second
)

// Learn takes the estimate for a start, the range that was told, and how long it took.
func (c *Calibration) Learn(estimated, told Outlook, waited time.Duration) {
	if !estimated.Known {
		return
	}
	c.sooner = append(c.sooner, ratio(waited, estimated.Soonest))
	c.later = append(c.later, ratio(waited, estimated.Latest))
	c.held = append(c.held, told.Soonest <= waited && waited <= told.Latest)
	if over := len(c.held) - lately; over > 0 {
		c.sooner, c.later, c.held = c.sooner[over:], c.later[over:], c.held[over:]
	}
}

func ratio(actual, estimated time.Duration) float64 {
	return float64(actual+grace) / float64(estimated+grace)
}

// Correct is an estimate as it is to be told.
func (c *Calibration) Correct(o Outlook) Outlook {
	if n := len(c.held); o.Known && n >= calibrated {
		// The next error is as likely to lie between any two of the n before it as between others.
		beyond := int(tail * float64(n+1))
		o.Soonest = min(o.Likely, scaled(o.Soonest, sorted(c.sooner)[max(0, beyond-1)]))
		o.Latest = max(o.Likely, scaled(o.Latest, sorted(c.later)[min(n-1, n-beyond)]))
	}
	return o
}

func scaled(d time.Duration, by float64) time.Duration {
	const most = 10 * 365 * 24 * time.Hour // a longer estimate says nothing
	return max(0, time.Duration(min(float64(d+grace)*by, float64(most)))-grace)
}

func sorted(list []float64) []float64 {
	out := slices.Clone(list)
	slices.Sort(out)
	return out
}

// Clone is a copy that later learning leaves alone.
func (c *Calibration) Clone() Calibration {
	return Calibration{slices.Clone(c.sooner), slices.Clone(c.later), slices.Clone(c.held)}
}

// Held is how many of the last estimates were right: the start was within the range that
// was told.
func (c *Calibration) Held() (right, of int) {
	for _, held := range c.held {
		if held {
			right++
		}
	}
	return right, len(c.held)
}
