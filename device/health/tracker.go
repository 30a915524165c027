// SPDX-License-Identifier: MPL-2.0

package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Tracker turns surveys and events of GPUs into faults, each with the time
// since when it stands. Two kinds of fault differ in how they end: an observed
// one ends when a survey no longer sees it, a latched one, made by an event,
// when a survey is clean and a probe of the GPU has succeeded.
type Tracker struct {
	classes classTable
	ignore  map[string]bool
	// patience is how long a tentative problem lasts before it is a fault.
	patience time.Duration
	gpus     map[string]*condition
	// xids are the last by UUID; metrics ask for them from other goroutines.
	xids sync.Map
}

// condition is the faults of one GPU, by code.
type condition struct {
	observed, latched map[string]gpu.Fault
	// tentative is since when problems that are no faults yet have lasted.
	tentative map[string]time.Time
	// clean is true when the last survey saw nothing wrong.
	clean bool
	// recovered are the times at which latched faults were cleared.
	recovered []time.Time
}

func New(h config.Health) *Tracker {
	classes := defaultXIDs()
	classes.configure(h.ApplicationXIDs, h.FatalXIDs)
	return &Tracker{classes: classes, ignore: h.Ignore, patience: hardware.HangTimeouts * h.Timeout, gpus: map[string]*condition{}}
}

func (t *Tracker) condition(uuid string) *condition {
	c := t.gpus[uuid]
	if c == nil {
		c = &condition{observed: map[string]gpu.Fault{}, latched: map[string]gpu.Fault{}}
		t.gpus[uuid] = c
	}
	return c
}

// Restore takes over latched faults, and since when the others stand, from the
// state that an earlier run of the plugin left. The faults of a MIG instance are
// its GPU's and its own.
func (t *Tracker) Restore(states []gpu.GPUState) {
	parents := map[string][]gpu.Fault{}
	for _, s := range states {
		parents[s.UUID] = s.Faults
	}
	for _, s := range states {
		for _, f := range s.Faults {
			if slices.ContainsFunc(parents[s.ParentUUID], func(p gpu.Fault) bool { return p.Code == f.Code }) {
				continue
			}
			if strings.HasPrefix(f.Code, xidPrefix) || strings.HasPrefix(f.Code, hardware.EventCode) {
				t.condition(s.UUID).latched[f.Code] = f
			} else {
				t.condition(s.UUID).observed[f.Code] = f
			}
		}
	}
}

// Survey takes note of what a survey saw of one GPU.
func (t *Tracker) Survey(uuid string, problems []hardware.Problem, now time.Time) {
	c := t.condition(uuid)
	seen, tentative := map[string]gpu.Fault{}, map[string]time.Time{}
	for _, p := range problems {
		if t.ignore[p.Code] {
			continue
		}
		since := c.since(p.Code, now)
		if p.Tentative && now.Sub(since) < t.patience {
			tentative[p.Code] = since
			continue
		}
		seen[p.Code] = gpu.Fault{Code: p.Code, Message: p.Message, Action: p.Action, Since: since, Fatal: p.Fatal}
	}
	c.observed, c.tentative, c.clean = seen, tentative, len(seen)+len(tentative) == 0
}

// since is when a problem that is observed now began. A GPU that was lost and is
// missing now has been gone since it was lost.
func (c *condition) since(code string, now time.Time) time.Time {
	if old, ok := c.observed[code]; ok {
		return old.Since
	}
	if lost, ok := c.observed[hardware.CodeLost]; ok && code == hardware.CodeMissing {
		return lost.Since
	}
	if began, ok := c.tentative[code]; ok {
		return began
	}
	return now
}

const xidPrefix = "xid-"

// NoteXID keeps the last XID of a GPU for metrics.
func (t *Tracker) NoteXID(uuid string, number uint64) { t.xids.Store(uuid, number) }

// XID takes note of an event and returns its class.
func (t *Tracker) XID(uuid string, number uint64, now time.Time) Class {
	class := t.classes[number]
	if f, bad := xidFault(number, class); bad {
		t.latch(uuid, f, now)
	}
	return class
}

// Class is that of an XID.
func (t *Tracker) Class(number uint64) Class { return t.classes[number] }

// LastXID is the last XID that a GPU reported since the plugin started, or 0.
func (t *Tracker) LastXID(uuid string) uint64 {
	if n, ok := t.xids.Load(uuid); ok {
		return n.(uint64)
	}
	return 0
}

// Event takes note of an event that is no XID. Without a problem it changes
// nothing.
func (t *Tracker) Event(uuid string, p hardware.Problem, now time.Time) {
	if p.Code != "" {
		t.latch(uuid, gpu.Fault{Code: p.Code, Message: p.Message, Action: p.Action, Fatal: p.Fatal}, now)
	}
}

// latch enters a fault that stands until a probe succeeds.
func (t *Tracker) latch(uuid string, f gpu.Fault, now time.Time) {
	if t.ignore[f.Code] {
		return
	}
	c := t.condition(uuid)
	if _, known := c.latched[f.Code]; !known {
		f.Since = now
		c.latched[f.Code] = f
	}
	c.clean = false
}

func xidFault(number uint64, class Class) (gpu.Fault, bool) {
	f := gpu.Fault{Code: fmt.Sprintf("%s%d", xidPrefix, number), Fatal: class != Link}
	switch class {
	case Fatal:
		f.Message = fmt.Sprintf("the driver reported XID %d, after which the GPU cannot be relied on", number)
		f.Action = "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset); it is healthy again when the reset is verified"
	case Link:
		f.Message = fmt.Sprintf("the driver reported XID %d, a fault of NVLink", number)
		f.Action = "check nvidia-smi nvlink --status; it is healthy again after a reset, or add the code to health.ignore"
	case Lost:
		f.Message = fmt.Sprintf("the driver reported XID %d, the GPU has fallen off the bus", number)
		f.Action = "drain the node and power-cycle it; if it happens again, replace the GPU"
	default:
		return f, false
	}
	return f, true
}

// Suspects are the devices that a probe could clear: latched, and clean otherwise.
func (t *Tracker) Suspects() []string {
	var all []string
	for uuid, c := range t.gpus {
		if len(c.latched) > 0 && c.clean {
			all = append(all, uuid)
		}
	}
	slices.Sort(all)
	return all
}

// Cleared ends the latched faults of a GPU whose probe has succeeded, unless
// something has happened since.
func (t *Tracker) Cleared(uuid string, now time.Time) bool {
	c := t.condition(uuid)
	if !c.clean || len(c.latched) == 0 {
		return false
	}
	c.latched = map[string]gpu.Fault{}
	c.recovered = append(c.recovered, now)
	return true
}

// Recoveries counts how often a device has recovered since some moment.
func (t *Tracker) Recoveries(uuid string, since time.Time) int {
	c := t.condition(uuid)
	c.recovered = slices.DeleteFunc(c.recovered, func(at time.Time) bool { return at.Before(since) })
	return len(c.recovered)
}

// Latched are the faults of a device that only a probe ends.
func (t *Tracker) Latched(uuid string) []gpu.Fault {
	return slices.Collect(maps.Values(t.condition(uuid).latched))
}

// OfLink reports whether a fault is one of NVLink.
func (t *Tracker) OfLink(f gpu.Fault) bool {
	number, err := strconv.ParseUint(strings.TrimPrefix(f.Code, xidPrefix), 10, 64)
	return err == nil && t.classes[number] == Link
}

// Faults are all faults of a GPU, the oldest first.
func (t *Tracker) Faults(uuid string) []gpu.Fault {
	c, ok := t.gpus[uuid]
	if !ok {
		return nil
	}
	var all []gpu.Fault
	for _, f := range c.latched {
		all = append(all, f)
	}
	for _, f := range c.observed {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b gpu.Fault) int {
		if d := a.Since.Compare(b.Since); d != 0 {
			return d
		}
		return strings.Compare(a.Code, b.Code)
	})
	return all
}
