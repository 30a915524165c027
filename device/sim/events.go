// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// eventSet delivers the XIDs and other events that are appended to the control
// file after a GPU was registered.
type eventSet struct {
	nvml.EventSet
	machine *Machine

	mu        sync.Mutex
	listening []*registration
}

// registration is one GPU in an event set: the types that it tells of, and how
// many of its XIDs and other events were told.
type registration struct {
	gpu          *gpu
	types        uint64
	xids, events int
}

func (s *eventSet) register(g *gpu, types uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := g.condition()
	s.listening = append(s.listening, &registration{g, types, len(c.XIDs), len(c.Events)})
}

// Wait returns the next event, or ERROR_TIMEOUT after that many milliseconds.
func (s *eventSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	deadline := time.Now().Add(time.Duration(milliseconds) * time.Millisecond)
	for {
		if ret := s.machine.ready(); ret != nvml.SUCCESS {
			return nvml.EventData{}, ret
		}
		if event, ok := s.next(); ok {
			return event, nvml.SUCCESS
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		}
		time.Sleep(min(left, 4*s.machine.nap))
	}
}

func (s *eventSet) next() (nvml.EventData, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.listening {
		if event, ok := r.next(); ok {
			return event, true
		}
	}
	return nvml.EventData{}, false
}

// next is the next untold event of the GPU.
func (r *registration) next() (nvml.EventData, bool) {
	c := r.gpu.condition()
	event := nvml.EventData{Device: r.gpu, GpuInstanceId: ^uint32(0), ComputeInstanceId: ^uint32(0)}
	if xid, ok := untold(c.XIDs, &r.xids); ok {
		event.EventType, event.EventData = nvml.EventTypeXidCriticalError, xid
		for _, d := range r.gpu.migDevices() {
			if d.uuid() == c.XIDInstance {
				event.GpuInstanceId, event.ComputeInstanceId = uint32(d.instance.ID), 0
			}
		}
		return event, r.types&event.EventType != 0
	}
	kind, ok := untold(c.Events, &r.events)
	event.EventType = kind
	return event, ok && r.types&kind != 0
}

// untold takes the first entry of a list that was not told yet.
func untold(list []uint64, told *int) (uint64, bool) {
	*told = min(*told, len(list))
	if *told == len(list) {
		return 0, false
	}
	*told++
	return list[*told-1], true
}

func (s *eventSet) Free() nvml.Return { return nvml.SUCCESS }
