// SPDX-License-Identifier: MPL-2.0

package keeper

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// Status is how the store of the ledger does.
type Status struct {
	// Since is when it began to take nothing; zero: it takes all.
	Since time.Time
	// Unstored records wait in memory, and Dropped ones were given up to bound them since
	// the store took something last.
	Unstored, Dropped int
}

const (
	// mostUnstored bounds the records in memory while nothing can be stored.
	mostUnstored = 100_000
	// batch is how many records are stored at once: a database takes them one by one, and
	// may be far away.
	batch = 500
	// storeTimeout is how long the store may take to answer, and finishTimeout how long to
	// take the rest when the process ends.
	storeTimeout, finishTimeout = 30 * time.Second, 10 * time.Second
)

// store writes the records that wait. Those that cannot be stored are tried again.
func (k *Keeper) store(ctx context.Context) {
	for k.resumed && len(k.unstored) > 0 {
		next := k.unstored[:min(batch, len(k.unstored))]
		err := k.append(ctx, next)
		if k.answered(err); err != nil {
			break
		}
		k.unstored = k.unstored[len(next):]
	}
	if len(k.unstored) == 0 {
		k.unstored = nil
	}
	k.bound()
	k.status.Unstored = len(k.unstored)
	if k.Report != nil {
		k.Report(k.status)
	}
}

func (k *Keeper) append(ctx context.Context, records []ledger.Record) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return k.Store.Append(ctx, records)
}

// bound keeps the records that wait for the store within the bounds of memory: measurements
// go first, then whole entries that ended, the oldest first. Nomad is asked
// for those again, and may remember them.
func (k *Keeper) bound() {
	over := len(k.unstored) - mostUnstored
	if over <= 0 {
		return
	}
	before := len(k.unstored)
	k.unstored = slices.DeleteFunc(k.unstored, func(r ledger.Record) bool {
		goes := over > 0 && (r.Kind == ledger.KindUse || r.Kind == ledger.KindSeen)
		if goes {
			over--
		}
		return goes
	})
	of := map[ledger.Key]int{}
	for _, r := range k.unstored {
		of[r.Key]++
	}
	given := map[ledger.Key]bool{}
	for _, r := range k.unstored {
		if over > 0 && r.Kind == ledger.KindEnd {
			given[r.Key] = true
			over -= of[r.Key]
		}
	}
	k.unstored = slices.DeleteFunc(k.unstored, func(r ledger.Record) bool { return given[r.Key] })
	if k.status.Dropped == 0 {
		k.Logger.Error("the ledger could not be written for too long: the records of the allocs that ended first are dropped, and Nomad is asked for them later", "most", mostUnstored)
	}
	k.status.Dropped += before - len(k.unstored)
	k.lost = true
}

// read notes whether the store could be read. A full disk can be, and cannot be written all the same.
func (k *Keeper) read(err error) {
	if err != nil || len(k.unstored) == 0 {
		k.answered(err)
	}
}

// answered notes whether the store answered.
func (k *Keeper) answered(err error) {
	k.trouble(&k.toldStore, err)
	switch {
	case err == nil && !k.status.Since.IsZero():
		k.Logger.Info("the ledger is written again", "away", k.Now().Sub(k.status.Since).Round(time.Second), "waiting", len(k.unstored), "dropped", k.status.Dropped)
		k.status.Since, k.status.Dropped = time.Time{}, 0
	case err != nil && k.status.Since.IsZero():
		k.status.Since = k.Now()
	}
}

// trouble tells of an error once; told is the last one told.
func (k *Keeper) trouble(told *string, err error) {
	if err == nil {
		*told = ""
		return
	}
	if text := fmt.Sprint(err); text != *told {
		*told = text
		k.Logger.Error("ledger", "error", err)
		k.State.Trouble(err)
	}
}
