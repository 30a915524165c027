// SPDX-License-Identifier: MPL-2.0

// Package locktest tests that what several goroutines use is used under its lock.
package locktest

import (
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// patience is for calls to reach a lock, however busy the machine is.
const patience = time.Minute

// MustWait holds a lock and fails if one of the calls goes on before it is let go. A
// process has one such test at a time.
func MustWait(t *testing.T, lock sync.Locker, calls ...func()) {
	t.Helper()
	done := make(chan struct{}, len(calls))
	lock.Lock()
	for _, call := range calls {
		go underLock(call, done)
	}
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return waiting()+len(done) == len(calls) }), wait.Timeout(patience), wait.Gap(time.Millisecond)))
	early := len(done)
	lock.Unlock()
	for range calls {
		<-done
	}
	must.Zero(t, early, must.Sprint("calls went on while another held the lock"))
}

// underLock runs a call, under a name by which it is found among all goroutines.
func underLock(call func(), done chan<- struct{}) {
	defer func() { done <- struct{}{} }()
	call()
}

// atALock is how the runtime describes a goroutine that waits for a lock.
var atALock = regexp.MustCompile(`^goroutine \d+ .*\[sync\.(Mutex|RWMutex)\.R?Lock`)

// waiting counts the calls of underLock that wait for a lock.
func waiting() (count int) {
	stacks := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(stack, "locktest.underLock(") && atALock.MatchString(stack) {
			count++
		}
	}
	return count
}
