// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
)

func TestPeersAreBoundedForEachTask(t *testing.T) {
	now := time.Unix(0, 0)
	s := newPeers(func() time.Time { return now })
	one, other := peer{group: "/one"}, peer{group: "/other"}
	var leave []func()
	for range maxPerGroup {
		l, err := s.enter(one)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	if _, err := s.enter(one); err == nil || !strings.Contains(err.Error(), "connections under way") {
		t.Errorf("one more: %v", err)
	}
	l, err := s.enter(other)
	if err != nil {
		t.Errorf("another task: %v", err)
	}
	l()
	for _, l := range leave {
		l()
	}
	if l, err = s.enter(one); err != nil || s.total != 1 || len(s.byGroup) != 1 {
		t.Errorf("after all have left: %v, %d, %v", err, s.total, s.byGroup)
	}
	l()
	s.total = maxConnections
	if _, err = s.enter(other); err == nil {
		t.Error("there is no bound for all")
	}
}

// The author of many tasks does not take the gate from others.
func TestManyTasksOfOneAuthorLeaveRoomForOthers(t *testing.T) {
	s := newPeers(time.Now)
	for n := range 40 {
		for range maxPerGroup {
			if _, err := s.enter(peer{group: fmt.Sprint("/hostile/", n)}); err != nil {
				break
			}
		}
	}
	for n := range 79 {
		for k := range fewPerGroup {
			if _, err := s.enter(peer{group: fmt.Sprint("/victim/", n)}); err != nil {
				t.Fatalf("connection %d of task %d: %v", k, n, err)
			}
		}
	}
}

func TestPeerThatWasSilentIsNotWaitedForAgain(t *testing.T) {
	now := time.Unix(0, 0)
	s := newPeers(func() time.Time { return now })
	one, other := peer{group: "/one"}, peer{group: "/other"}
	waited := func(p peer) (hour bool) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			<-s.patience(p, time.Hour)
			hour = time.Since(began) == time.Hour
		})
		return hour
	}
	s.silent(one)
	if waited(one) || !waited(other) {
		t.Error("the wrong one is waited for")
	}
	if !s.mayComplain(one) || s.mayComplain(one) || !s.mayComplain(other) {
		t.Error("each is to be complained of once")
	}
	now = now.Add(penalty)
	if !waited(one) || !s.mayComplain(one) {
		t.Error("it is held against it for good")
	}
}

func TestTheDeepestControlGroupTellsTasksApart(t *testing.T) {
	for text, want := range map[string]string{
		"0::/nomad-gpu/task-1\n": "/nomad-gpu/task-1",
		"12:memory:/nomad/x\n3:name=systemd:/system.slice/y.scope\n0::/\n": "/system.slice/y.scope",
		"":           "",
		"nonsense\n": "",
	} {
		if got := deepest(cgroup.Parse(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
