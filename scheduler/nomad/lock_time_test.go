// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// diary is what happened to a replica that wants the lock, each with the second at which it did.
type diary struct {
	t     *testing.T
	begun time.Time
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf("%gs ", time.Since(d.begun).Seconds())+fmt.Sprintf(format, args...))
}

// runLock lets a replica want the lock of a Nomad that answers so, for so long.
func runLock(t *testing.T, long time.Duration, answer func(d *diary, r *http.Request) (int, any)) (*Lock, []string) {
	d := &diary{t: t, begun: time.Now()}
	m := &inMemory{}
	before, asked := time.Time{}, context.Context(nil)
	m.answer = func(r *http.Request) (int, any) {
		if asked != nil && time.Now().After(before) && asked.Err() == nil {
			t.Errorf("at %s the clock of a step that is over goes on", time.Since(d.begun))
		}
		before, asked = time.Now(), r.Context()
		d.note("%s", strings.TrimPrefix(call(r), r.Method+" /v1/var/p "))
		return answer(d, r)
	}
	l := NewLock(m.client(t), "ops", "p", "http://one", 15*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	l.Run(ctx, func(leading bool) { d.note("leading %v of %q", leading, l.Leader()) }, func(err error) { d.note("%v", err) })
	d.note("over")
	if asked.Err() == nil {
		t.Error("the clock of the last request goes on")
	}
	return l, d.lines
}

// TestWhenTheLockIsRenewed: six times within its time, and it is given back at the end.
func TestWhenTheLockIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released api.Variable
		l, got := runLock(t, 6*time.Second, func(_ *diary, r *http.Request) (int, any) {
			if r.URL.Query().Has("lock-release") {
				if err := json.NewDecoder(r.Body).Decode(&released); err != nil || r.URL.Query().Get("namespace") != "ops" {
					t.Errorf("released %s, %v", r.URL, err)
				}
			}
			return stocked(r)
		})
		want := []string{"0s lock-acquire", `0s leading true of "http://one"`, "2.5s lock-renew", "5s lock-renew", `6s leading false of "http://one"`, "6s lock-release", "6s over"}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if released.Lock == nil || released.Lock.ID != "lock" || released.Namespace != "ops" || released.Path != "p" || l.Leading() {
			t.Errorf("released %+v, it leads: %v", released, l.Leading())
		}
	})
}

// TestALeaderThatNomadDoesNotAnswerCeases three seconds before its lock is over, names itself
// no more once it has noticed, and asks for the lock anew.
func TestALeaderThatNomadDoesNotAnswerCeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, got := runLock(t, 16*time.Second, func(d *diary, r *http.Request) (int, any) {
			if time.Since(d.begun) > 0 {
				return http.StatusInternalServerError, "no leader"
			}
			return stocked(r)
		})
		failed := "leader lock: Unexpected response code: 500 (no leader)"
		want := []string{"0s lock-acquire", `0s leading true of "http://one"`}
		for _, at := range []string{"2.5s", "5s", "7.5s", "10s", "12.5s"} {
			want = append(want, at+" lock-renew", at+" renew "+failed)
		}
		want = append(want, `12.5s leading false of ""`, "15s lock-acquire", "15s acquire "+failed, "16s over")
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestANomadThatHangsIsAskedAgain: a third of the time of the lock is what a request may take,
// also the one that gives it back; what the end interrupts is no failure.
func TestANomadThatHangsIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, got := runLock(t, 9*time.Second, func(d *diary, r *http.Request) (int, any) {
			if time.Since(d.begun) > 0 {
				return hang(r)
			}
			return stocked(r)
		})
		want := []string{
			"0s lock-acquire", `0s leading true of "http://one"`, "2.5s lock-renew", `7.5s renew leader lock: Put "http://nomad.test/v1/var/p?lock-renew=&namespace=ops": context deadline exceeded`,
			"7.5s lock-renew", `9s leading false of "http://one"`, "9s lock-release", "14s over",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestWhoDoesNotLeadGivesNothingBack, and looks who does lead each time: where the
// variable is gone, that is not known.
func TestWhoDoesNotLeadGivesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, got := runLock(t, 3*time.Second, func(d *diary, r *http.Request) (int, any) {
			switch {
			case r.Method != http.MethodGet:
				return http.StatusConflict, "conflict"
			case time.Since(d.begun) > 0:
				return http.StatusNotFound, "variable not found"
			}
			return http.StatusOK, `{"Path":"p","Items":{"address":"http://two","secret":"s2"}}`
		})
		if want := []string{"0s lock-acquire", "0s GET /v1/var/p", "2.5s lock-acquire", "2.5s GET /v1/var/p", "3s over"}; !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if l.Leader() != "" || l.Secret() != "" {
			t.Errorf("it names %q", l.Leader())
		}
	})
}

// What is asked of Nomad for the lock names who wants it, for how long, and for how long it
// stays closed after its holder died; one that is gone is taken anew, and an answer without a
// lock is none.
func TestWhatIsAskedForTheLock(t *testing.T) {
	var wanted api.Variable
	answer := `{"Path":"p","Lock":{"ID":"new"}}`
	m := &inMemory{answer: func(r *http.Request) (int, any) {
		switch q := r.URL.Query(); {
		case q.Get("namespace") != "ops":
			t.Errorf("asked %s", r.URL)
		case q.Has("lock-renew"):
			return http.StatusNotFound, "no such variable"
		}
		text, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(text, &wanted) != nil {
			t.Errorf("asked with %s, %v", text, err)
		}
		return http.StatusOK, answer
	}}
	l := NewLock(m.client(t), "ops", "p", "http://one", 15*time.Second)
	l.hold("old", time.Now())
	if err := l.step(t.Context()); err != nil || l.id != "new" {
		t.Fatalf("it holds %q, %v", l.id, err)
	}
	if wanted.Lock == nil || wanted.Lock.TTL != "15s" || wanted.Lock.LockDelay != "3s" || wanted.Items["address"] != "http://one" || wanted.Items["secret"] != l.own || wanted.Namespace != "ops" {
		t.Errorf("asked for %+v", wanted)
	}
	l.lose()
	answer = `{"Path":"p"}`
	if err := l.step(t.Context()); err == nil || l.Leading() || !strings.Contains(err.Error(), "without a lock") {
		t.Errorf("without a lock it leads: %v, %v", l.Leading(), err)
	}
}

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
		if strings.Contains(stack, "nomad.underLock(") && atALock.MatchString(stack) {
			return true
		}
	}
	return false
}

// What a replica knows of the lock is read and written by one at a time.
func TestWhatIsKnownOfTheLockIsLocked(t *testing.T) {
	m := &inMemory{answer: stocked}
	l := NewLock(m.client(t), "ops", "p", "http://one", 15*time.Second)
	for name, call := range map[string]func(){
		"Leading": func() { l.Leading() }, "Leader": func() { l.Leader() }, "Secret": func() { l.Secret() }, "step": func() { _ = l.step(t.Context()) },
		"learnLeader": func() { _ = l.learnLeader(t.Context()) }, "hold": func() { l.hold("lock", time.Now()) }, "lose": l.lose,
		"deadline": func() { l.deadline() }, "release": l.release,
	} {
		l.mu.Lock()
		before := len(m.requests())
		var done atomic.Bool
		ended := make(chan struct{})
		go func() { defer close(ended); underLock(call, &done) }()
		for !done.Load() && !waitsAtALock() {
			runtime.Gosched()
		}
		if done.Load() {
			t.Errorf("%s does not wait for the lock", name)
		}
		if asked := m.requests()[before:]; name != "learnLeader" && len(asked) > 0 {
			t.Errorf("%s asked %q before it had the lock", name, asked)
		}
		l.mu.Unlock()
		<-ended
	}
}
