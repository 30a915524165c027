// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// usePause is how long what processes did is not asked for again: the driver takes a sample
// once to six times a second. useWindow is the longest time that an answer is about.
const (
	usePause  = time.Second
	useWindow = 10 * time.Second
)

// uses keep what the processes of each device did, by UUID.
type uses struct {
	mu  sync.Mutex
	all map[string]*use
}

// use is what the processes of one device did since they were asked about before.
type use struct {
	mu sync.Mutex // held while NVML works
	// seen is the time stamp of the latest sample, in microseconds of the system's clock.
	seen  uint64
	asked time.Time
	milli map[uint32]int64
}

func (u *uses) of(uuid string) *use {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[string]*use{}
	}
	if u.all[uuid] == nil {
		u.all[uuid] = &use{}
	}
	return u.all[uuid]
}

// measure returns each process's use of the multiprocessors since the last measurement, in
// thousandths; nil where the driver does not tell, as with MIG. The driver keeps samples for
// a while, and returns the mean of all of them, also of processes that have ended, unless it
// is told which were seen: an idle process shows 60 % five seconds after its last kernel.
func (u *use) measure(d nvml.Device, now time.Time) map[uint32]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if pause := now.Sub(u.asked); !u.asked.IsZero() && pause >= 0 && pause < usePause {
		return u.milli
	}
	since := u.seen
	if earliest, latest := now.Add(-useWindow), now; since < micros(earliest) || since > micros(latest) {
		since = micros(earliest) // nothing was seen, or the clock was set
	}
	samples, ret := d.GetProcessUtilization(since)
	u.asked, u.milli = now, nil
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND: // no process did anything
	default:
		return nil
	}
	u.milli = map[uint32]int64{}
	at := map[uint32]uint64{}
	for _, s := range samples {
		if s.TimeStamp <= since || s.TimeStamp < at[s.Pid] {
			continue
		}
		at[s.Pid], u.seen = s.TimeStamp, max(u.seen, s.TimeStamp)
		u.milli[s.Pid] = int64(min(s.SmUtil, 100)) * 10
	}
	return u.milli
}

func micros(t time.Time) uint64 { return uint64(t.UnixMicro()) }
