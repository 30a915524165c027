package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Dispatched assumes that Nomad places a child which it has made of a parameterized job, until
// Nomad shows its allocs. The asks are the parent's. Without it all that is dispatched at once
// would be decided about as if it were the only one, and what was dispatched is never taken back.
func Dispatched(inTime func() error, tx *state.Tx, child nomad.JobKey, asks []admit.Ask) {
	asks = slices.Clone(asks)
	asks = slices.DeleteFunc(asks, func(a admit.Ask) bool {
		return a.Count <= tx.Live(child, a.Group) || tx.Blocked(child) != nil
	})
	for i := range asks {
		asks[i].JobID, asks[i].Was = child.ID, nil
		asks[i].Count -= tx.Live(child, asks[i].Group)
	}
	if len(asks) == 0 {
		return
	}
	// What it finds no room for is not assumed: it waits in Nomad's own order.
	if _, _, err := Job(inTime, tx, child, asks, record.New(child)); err == nil {
		tx.Changed()
	}
}
