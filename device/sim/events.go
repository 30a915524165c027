package sim

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// eventSet delivers the XIDs that are appended to the control file after a GPU
// was registered.
type eventSet struct {
	nvml.EventSet
	machine *Machine

	mu    sync.Mutex
	gpus  []*gpu
	heard map[string]int
}

func (s *eventSet) register(g *gpu) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus = append(s.gpus, g)
	s.heard[g.uuid] = len(g.condition().XIDs)
}

// Wait returns the next event, or ERROR_TIMEOUT after so many milliseconds.
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
	for _, g := range s.gpus {
		xids := g.condition().XIDs
		s.heard[g.uuid] = min(s.heard[g.uuid], len(xids))
		if at := s.heard[g.uuid]; at < len(xids) {
			s.heard[g.uuid]++
			return nvml.EventData{Device: g, EventType: nvml.EventTypeXidCriticalError, EventData: xids[at],
				GpuInstanceId: ^uint32(0), ComputeInstanceId: ^uint32(0)}, true
		}
	}
	return nvml.EventData{}, false
}

func (s *eventSet) Free() nvml.Return { return nvml.SUCCESS }
