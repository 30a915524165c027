// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// atOnce runs something in eight goroutines, many times each: without its lock, a map that
// is written by two at once ends the program.
func atOnce(times int, f func(goroutine, i int)) {
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range times {
				f(g, i)
			}
		})
	}
	all.Wait()
}

func TestTurnsOfManyJobsAtOnce(t *testing.T) {
	turns := newTurns()
	atOnce(3000, func(g, i int) {
		done, err := turns.take(t.Context(), fmt.Sprint(g, i))
		if err != nil {
			t.Error(err)
			return
		}
		done()
	})
	if len(turns.jobs) != 0 {
		t.Errorf("%d jobs are remembered", len(turns.jobs))
	}
}

func TestManyAddressesAtOnce(t *testing.T) {
	l := newLimiter(Limits{JobsPerSecond: 0.001, JobsBurst: 1})
	atOnce(3000, func(g, i int) {
		if !l.allow(fmt.Sprintf("10.%d.%d.%d:1", g, i>>8, i&255)) {
			t.Error("the first job of an address is refused")
		}
	})
}

// A log that is opened anew while lines are written loses none, and fails for none.
func TestLogFileIsRotatedWhileItIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.json")
	l, err := OpenLogFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	atOnce(300, func(g, _ int) {
		var err error
		if g == 0 {
			err = l.Reopen()
		} else {
			_, err = l.Write([]byte("line\n"))
		}
		if err != nil {
			t.Error(err)
		}
	})
	text, err := os.ReadFile(path)
	if got := strings.Count(string(text), "line\n"); err != nil || got != 7*300 {
		t.Errorf("%d lines, %v", got, err)
	}
}

// A server that ends leaves no connection to Nomad open.
func TestNoConnectionIsLeftOpen(t *testing.T) {
	s := newService(t, nil)
	var open atomic.Int32
	upstream := httptest.NewUnstartedServer(s.nomad)
	upstream.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	upstream.Start()
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(Config{Nomad: address, Decider: s.decider, Limits: testLimits, Logger: hclog.NewNullLogger()})
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/jobs", nil))
	if open.Load() != 1 {
		t.Fatalf("%d connections after one request", open.Load())
	}
	p.close()
	for deadline := time.Now().Add(time.Minute); open.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a connection is left open")
		}
	}
}
