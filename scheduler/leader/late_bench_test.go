// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// BenchmarkRecordLate admits new jobs of eight groups each, whose decisions are recorded once Nomad has them.
func BenchmarkRecordLate(b *testing.B) {
	s := servicetest.New(b, "", servicetest.Machine("a", 4))
	s.Decider.Late = true
	var asks []admit.Ask
	for i := range 8 {
		a := servicetest.Ask("", "2G", 1)
		a.Group = fmt.Sprintf("g%d", i)
		asks = append(asks, a)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		for i := range asks {
			asks[i].JobID = fmt.Sprintf("job-%d", n)
		}
		d, err := s.Decide(b.Context(), asks, false)
		if err != nil {
			b.Fatal(err)
		}
		s.Settle(b.Context(), asks, d, true)
		if err := s.Finish(b.Context()); err != nil {
			b.Fatal(err)
		}
		s.State.Do(func(tx *state.Tx) {
			key := nomad.JobKey{Namespace: "default", ID: asks[0].JobID}
			tx.Forget(key)
			tx.ForgetRecord(key)
		})
	}
}
