package place

// turnover is how many tasks end per task that starts, from 0, a cluster that only
// fills up, to 1, one that is as full as it gets. The last few hundred events
// count.
type turnover struct {
	rate  float64
	lives bool // tasks end
}

// turnoverMemory is over how many events the rate is a mean.
const turnoverMemory = 500

func (t *turnover) start() { t.rate *= 1 - 1.0/turnoverMemory }

func (t *turnover) end() { t.rate = min(1, t.rate+1.0/turnoverMemory) }

// Between these rates nothing changes.
const dies, lives = 0.01, 0.02

// change reports whether tasks have begun or ceased to end since the last time.
func (t *turnover) change() bool {
	was := t.lives
	t.lives = t.rate > lives || was && t.rate >= dies
	if !t.lives {
		return was
	}
	return !was
}
