package device

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// chorePause is how long after a chore it is looked at again: a GPU that was
// reset has forgotten what was set.
const chorePause = time.Minute

// equipTimeslices sets the length of the time slices of GPUs whose tasks take
// turns, and verifies it. The length belongs to the whole GPU, so a MIG
// instance has none of its own.
func (e *engine) equipTimeslices(units []*unit) {
	for _, u := range units {
		if u.offer.Sharing != gpu.SharingTimeslice || u.instance != nil || u.gpu.Model == "" {
			continue
		}
		level := u.offer.Timeslice
		if level == "default" && !e.everSet[u.uuid] {
			continue // what nobody has changed need not be set
		}
		e.everSet[u.uuid] = true
		done, err := e.chores.do("timeslice "+u.uuid, level, chorePause, func() error { return e.setTimeslice(u.uuid, level) })
		if done {
			u.timeslice = level
			continue
		}
		if err != nil {
			u.fault(gpu.Fault{Code: "timeslice-not-set", Message: fmt.Sprintf("the time-slice length %q could not be set: %s", level, err),
				Action: "check nvidia_smi in the plugin's configuration; it is tried again every minute"}, e)
		} else {
			u.fault(gpu.Fault{Code: "timeslice-not-set", Message: fmt.Sprintf("the time-slice length is being set to %q", level),
				Action: "wait a moment"}, e)
		}
	}
}

// setTimeslice changes the length where it is another, and reads it back.
func (e *engine) setTimeslice(uuid, level string) error {
	t := e.platform.timeslicer
	now, err := t.Timeslice(uuid)
	if err != nil {
		return err
	}
	if now == level {
		return nil
	}
	if err := t.SetTimeslice(uuid, level); err != nil {
		return err
	}
	now, err = t.Timeslice(uuid)
	if err == nil && now != level {
		err = fmt.Errorf("it is %q after it was set", now)
	}
	return err
}

// fault adds a fault of this unit only, and keeps since when it stands.
func (u *unit) fault(f gpu.Fault, e *engine) {
	key := u.uuid + " " + f.Code
	since, ok := e.since[key]
	if !ok {
		since = e.now()
	}
	e.sinceNext[key] = since
	f.Since = since
	u.faults = append(u.faults[:len(u.faults):len(u.faults)], f)
}
