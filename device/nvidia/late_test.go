// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// lateSet tells of one XID, late.
type lateSet struct {
	nvml.EventSet
	late time.Duration
	told bool
}

func (s *lateSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	if s.told {
		time.Sleep(time.Duration(milliseconds) * time.Millisecond)
		return nvml.EventData{}, nvml.ERROR_TIMEOUT
	}
	time.Sleep(s.late)
	s.told = true
	return nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 79}, nvml.SUCCESS
}

// NVML tells of an event once: where an answer that comes late is given up, an XID is lost.
func TestALateEventIsHeard(t *testing.T) {
	for late, want := range map[time.Duration]error{4 * time.Second: context.Canceled, time.Minute: guard.ErrHangs} {
		synctest.Test(t, func(t *testing.T) {
			b := &Backend{guard: guard.New(time.Second)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			heard := uint64(0)
			err := b.listen(ctx, &lateSet{late: late}, func(e hardware.Event) {
				heard = e.XID
				cancel()
			})
			if !errors.Is(err, want) || (heard == 79) != (want == context.Canceled) {
				t.Errorf("%s late: heard XID %d, and the watch ended with %v", late, heard, err)
			}
			time.Sleep(late) // until the call is back
			synctest.Wait()
		})
	}
}
