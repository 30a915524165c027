// SPDX-License-Identifier: MPL-2.0

package forecast

// Turnover is how many tasks end per task that starts, from 0, a cluster that only
// fills up, to 1, one that is as full as it gets. The last few hundred events
// count.
type Turnover struct {
	Rate  float64
	Lives bool // tasks end
}

// turnoverMemory is over how many events the rate is a mean.
const turnoverMemory = 500

// Start counts a task that starts.
func (t *Turnover) Start() { t.Rate *= 1 - 1.0/turnoverMemory }

// End counts one that ends.
func (t *Turnover) End() { t.Rate = min(1, t.Rate+1.0/turnoverMemory) }

// Between these rates nothing changes.
const dies, lives = 0.01, 0.02

// Change reports whether tasks have begun or ceased to end since the last time.
func (t *Turnover) Change() bool {
	was := t.Lives
	t.Lives = t.Rate > lives || was && t.Rate >= dies
	if !t.Lives {
		return was
	}
	return !was
}
