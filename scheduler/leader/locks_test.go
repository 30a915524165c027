// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// underLock makes a call, under a name by which it is found among all goroutines.
func underLock(call func(), done *atomic.Bool) {
	defer done.Store(true)
	call()
}

// atALock is how the runtime describes a goroutine that waits for a lock.
var atALock = regexp.MustCompile(`^goroutine \d+ .*\[sync\.Mutex\.Lock`)

// waitsAtALock reports whether the call of underLock does.
func waitsAtALock() bool {
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(stack, "leader.underLock(") && atALock.MatchString(stack) {
			return true
		}
	}
	return false
}

// What is under way is read and changed by one request at a time.
func TestWhatIsUnderWayIsLocked(t *testing.T) {
	c, err := config.Parse("test.hcl", nil)
	if err != nil {
		t.Fatal(err)
	}
	key := nomad.JobKey{Namespace: "default", ID: "job"}
	leads := func() bool { return true }
	d := New(state.New(c, time.Now), nomadtest.NewStore(), leads)
	one := func() *pending { return &pending{next: record.New(key), done: make(chan struct{})} }
	for _, row := range []struct {
		name string
		lock *sync.Mutex
		call func()
	}{
		{"keep", &d.late.mu, func() { d.late.keep(record.New(key), leads) }}, {"take", &d.late.mu, func() { d.late.take(key, true) }},
		{"end", &d.late.mu, func() { d.late.end(one()) }}, {"tried", &d.late.mu, func() { d.late.tried(t.Context(), nil) }},
		{"isWriting", &d.late.mu, func() { d.late.isWriting(key) }}, {"Finish", &d.late.mu, func() { _ = d.Finish(t.Context()) }},
		{"remember", &d.mu, func() { d.remember(record.New(key), nil) }},
		{"Settle", &d.mu, func() { d.Settle(t.Context(), []admit.Ask{{Namespace: "default", JobID: "job"}}, nil, false) }},
	} {
		row.lock.Lock()
		var done atomic.Bool
		ended := make(chan struct{})
		go func() { defer close(ended); underLock(row.call, &done) }()
		for !done.Load() && !waitsAtALock() {
			runtime.Gosched()
		}
		if done.Load() {
			t.Errorf("%s does not wait for the lock", row.name)
		}
		row.lock.Unlock()
		<-ended
	}
}
