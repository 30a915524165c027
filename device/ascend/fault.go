// SPDX-License-Identifier: MPL-2.0

package ascend

import (
	"context"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/device/dcmi"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// subscribe has the driver tell of the faults of devices that it does not tell of yet.
// Drivers that cannot are asked with every survey alone.
func (b *Backend) subscribe(found []answer) {
	for _, a := range found {
		if _, done := b.subscribed.LoadOrStore(a.seen.position(), true); done {
			continue
		}
		err, callErr := guarded(b, a.seen.position(), a.seen.device.Subscribe)
		if callErr != nil || dcmi.Gone(err) {
			b.subscribed.Delete(a.seen.position()) // once it answers
		}
	}
}

// mostUnheard is how many messages wait to be heard. Of those beyond, what stands is seen
// by the next survey.
const mostUnheard = 256

// hearFaults passes on what the driver tells of faults, by the devices' numbers.
func (b *Backend) hearFaults(ctx context.Context, uuids map[int]string, emit func(hardware.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-b.faults:
			if uuid := uuids[f.Logical]; uuid != "" && f.Grade > dcmi.Minor {
				emit(event(uuid, f))
			}
		}
	}
}

// changeNames are how a fault changed.
var changeNames = map[dcmi.Change]string{dcmi.Recovered: "ended", dcmi.Began: "began", dcmi.Passed: "happened"}

// event is the message of a fault that is major or critical. One that stands, or ended, the
// next survey sees; one that did not last stands until the device was tried.
func event(uuid string, f dcmi.Fault) hardware.Event {
	grade := gradeNames[min(f.Grade, dcmi.Critical)]
	e := hardware.Event{UUID: uuid, GI: hardware.Absent, CI: hardware.Absent, Name: fmt.Sprintf("%s fault %08X %s", grade, f.Code, changeNames[f.Change])}
	if f.Change == dcmi.Passed {
		e.Problem = hardware.Problem{Code: fmt.Sprintf("%snpu-%08x", hardware.EventCode, f.Code), Fatal: f.Grade >= dcmi.Critical,
			Message: fmt.Sprintf("the driver told of the %s fault %08X: %s", grade, f.Code, f.Text),
			Action:  "look the code up in Huawei's list of health management errors; it is healthy again when the driver finds nothing wrong with it and its node can be opened"}
	}
	return e
}
