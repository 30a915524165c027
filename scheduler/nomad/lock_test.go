// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// lockServer is a Nomad that grants a lock to one holder.
type lockServer struct {
	mu     sync.Mutex
	holder string
	items  map[string]string
	next   int
	down   bool
}

func (l *lockServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var v api.Variable
	_ = json.NewDecoder(r.Body).Decode(&v)
	q := r.URL.Query()
	switch {
	case l.down:
		http.Error(w, "no leader", http.StatusInternalServerError)
	case q.Has("lock-acquire") && l.holder != "", q.Has("lock-renew") && (v.Lock == nil || v.Lock.ID != l.holder):
		http.Error(w, "conflict", http.StatusConflict)
	case q.Has("lock-acquire"):
		l.next++
		l.holder, l.items = fmt.Sprintf("lock-%d", l.next), v.Items
		_ = json.NewEncoder(w).Encode(api.Variable{Lock: &api.VariableLock{ID: l.holder}})
	case q.Has("lock-release"):
		l.holder = ""
		fmt.Fprintln(w, "{}")
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(api.Variable{Path: "p", Items: l.items})
	default:
		fmt.Fprintln(w, "{}")
	}
}

func (l *lockServer) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func TestLock(t *testing.T) {
	nomad := &lockServer{}
	s := httptest.NewServer(nomad)
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	one := NewLock(client, "default", "p", "http://one", 15*time.Second)
	two := NewLock(client, "default", "p", "http://two", 15*time.Second)
	step := func(l *Lock) error { return l.step(t.Context()) }

	if err := errors.Join(step(one), step(two)); err != nil || !one.Leading() || two.Leading() || two.Leader() != "http://one" {
		t.Fatalf("one leads: %v, two leads: %v, two knows %q, %v", one.Leading(), two.Leading(), two.Leader(), err)
	}
	nomad.set(func() { nomad.down = true })
	if err := step(one); err == nil || !one.Leading() {
		t.Errorf("a failed renewal is an error (%v), and not yet the end (%v)", err, one.Leading())
	}
	one.mu.Lock()
	one.until = time.Now().Add(-time.Second)
	one.mu.Unlock()
	if one.Leading() {
		t.Error("a leader trusts a lock whose time is up")
	}
	nomad.set(func() { nomad.down = false; nomad.holder = "" })
	if err := errors.Join(step(two), step(one)); err != nil || one.Leading() || !two.Leading() {
		t.Errorf("after the loss: one leads: %v, two leads: %v, %v", one.Leading(), two.Leading(), err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan bool)
	done := make(chan struct{})
	go func() {
		defer close(done)
		two.Run(ctx, func(leading bool) { told <- leading }, func(error) {})
	}()
	if !<-told {
		t.Error("the leader is not told that it leads")
	}
	cancel()
	if <-told {
		t.Error("the leader is not told that it does not lead any more")
	}
	<-done
	nomad.set(func() {
		if nomad.holder != "" {
			t.Error("the lock was not given back")
		}
	})
}

// TestALeaderStopsBeforeItsLockDoes: 3 seconds before its time is over.
func TestALeaderStopsBeforeItsLockDoes(t *testing.T) {
	s := httptest.NewServer(&lockServer{})
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLock(client, "default", "p", "http://one", 15*time.Second)
	before := time.Now()
	if err := l.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if early, late := before.Add(12*time.Second), time.Now().Add(12*time.Second); l.until.Before(early) || l.until.After(late) {
		t.Errorf("it leads until %s, want %s to %s", l.until, early, late)
	}
}
