// SPDX-License-Identifier: MPL-2.0

package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// server starts Debian's PostgreSQL with an empty database, and returns its URL. Where there
// is none the test is skipped (make test-ledger installs it).
func server(t *testing.T) string {
	t.Helper()
	url, start := cluster(t)
	start()
	return url
}

// cluster makes an empty database, and returns its URL and what starts its server, which
// returns what stops it.
func cluster(t *testing.T) (url string, start func() (stop func())) {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Skip("no PostgreSQL below /usr/lib/postgresql")
	}
	bin := found[len(found)-1]
	dir, err := os.MkdirTemp("", "pg") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 { // as which it does not run
		const nobody = 65534
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	run := func(program string, args ...string) *exec.Cmd {
		c := exec.Command(filepath.Join(bin, program), args...)
		c.Dir, c.SysProcAttr = dir, as
		return c
	}
	if out, err := run("initdb", "-D", data, "-U", "ledger", "-A", "trust", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	url = "postgres:///postgres?user=ledger&sslmode=disable&host=" + dir
	return url, func() func() {
		postgres := run("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
		if err := postgres.Start(); err != nil {
			t.Fatal(err)
		}
		stop := sync.OnceFunc(func() {
			postgres.Process.Signal(syscall.SIGQUIT) //nolint:errcheck // it may have ended
			postgres.Wait()                          //nolint:errcheck // with any status
		})
		t.Cleanup(stop)
		answers(t, url)
		return stop
	}
}

// answers waits for a server.
func answers(t *testing.T, url string) {
	t.Helper()
	s := open(t, url, "probe", time.Now)
	for deadline := time.Now().Add(2 * time.Minute); ; {
		err := s.db.PingContext(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func open(t *testing.T, url, replica string, now func() time.Time) *Store {
	t.Helper()
	s, err := Open(Options{URL: url, Replica: replica, Keep: 30 * 24 * time.Hour, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) //nolint:errcheck // the server ends with the test
	return s
}

var noon = time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)

func key(alloc string) ledger.Key { return ledger.Key{Alloc: alloc, Task: "t", GPU: "GPU-1"} }

func hold(alloc string, at time.Time) ledger.Record {
	return ledger.Record{Kind: ledger.KindHold, At: at, Key: key(alloc), Hold: &ledger.Hold{
		Namespace: "n", Job: "j", Parent: "p", Group: "g", Queue: "q", Node: "n1", Type: "H100", Profile: "1g.10gb", Mode: "slice", Milli: 500, MemoryMiB: 1, AskedMilli: 2, AskedMiB: 3,
		Wanted: at.Add(-time.Minute), Priority: 70, HostMHz: 4, HostMiB: 5}}
}

func end(alloc string, at time.Time, why string) ledger.Record {
	return ledger.Record{Kind: ledger.KindEnd, At: at, Key: key(alloc), Why: why}
}

func use(alloc string, at time.Time, times int) ledger.Record {
	r := ledger.Record{Kind: ledger.KindUse, At: at, Key: key(alloc)}
	for range times {
		r.Compute.Add(100)
		r.Memory.Add(2000)
	}
	return r
}

func seen(at time.Time) ledger.Record { return ledger.Record{Kind: ledger.KindSeen, At: at} }

func put(t *testing.T, s *Store, records ...ledger.Record) {
	t.Helper()
	if err := s.Append(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

// entries are what was held: "a 2h0m0s complete 5" with its samples, and + while it is held.
func entries(t *testing.T, s *Store, from, to time.Time) string {
	t.Helper()
	var list []string
	f := ledger.NewFold(from, to, func(e *ledger.Entry) {
		list = append(list, fmt.Sprintf("%s %s%s %s%d", e.Alloc, e.To.Sub(e.From), map[bool]string{true: "+"}[e.Open], e.Why, e.Compute.Count()))
	})
	if err := s.Read(t.Context(), from, to, f.Add); err != nil {
		t.Fatal(err)
	}
	f.Close()
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// Tables of a release that did not keep since when an alloc was waited for are written and
// read on, and that release goes on writing to them.
func TestTablesOfAnEarlierRelease(t *testing.T) {
	s := open(t, server(t), "a", func() time.Time { return noon.Add(time.Hour) })
	const insert = `INSERT INTO gpu_ledger_entries (alloc, task, gpu, namespace, job, parent, task_group, queue, node, type, profile, mode, milli, memory_mib, asked_milli, asked_mib, began)
		VALUES ($1, 't', 'GPU-1', 'n', 'j', 'p', 'g', 'q', 'n1', 'H100', '1g.10gb', 'slice', 500, 1, 2, 3, $2)`
	before := func(alloc string) {
		t.Helper()
		if _, err := s.db.ExecContext(t.Context(), insert, alloc, noon); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s)
	if _, err := s.db.ExecContext(t.Context(), "ALTER TABLE gpu_ledger_entries DROP COLUMN wanted, DROP COLUMN priority, DROP COLUMN host_mhz, DROP COLUMN host_mib"); err != nil {
		t.Fatal(err)
	}
	before("x")
	s.ready = false // the next release starts
	put(t, s, hold("y", noon))
	before("z")
	held, _, err := s.Recall(t.Context())
	if err != nil || len(held) != 3 || !held[0].Wanted.IsZero() || held[0].Priority != 0 || *held[1].Hold != *hold("y", noon).Hold || held[2].HostMHz != 0 {
		t.Errorf("recalled %+v, %v", held, err)
	}
}

// TestPostgres writes to a real server as two replicas do.
func TestPostgres(t *testing.T) {
	url := server(t)
	now := noon.Add(10 * time.Hour)
	clock := func() time.Time { return now }
	a, b := open(t, url, "a", clock), open(t, url, "b", clock)
	// Both begin at once, and write the same.
	var both sync.WaitGroup
	for _, s := range []*Store{a, b} {
		both.Go(func() {
			if err := s.Append(t.Context(), []ledger.Record{hold("x", noon), hold("y", noon), hold("z", noon), use("x", noon.Add(time.Hour), 5), end("x", noon.Add(2*time.Hour), "complete"), seen(now)}); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	all := func(want string) {
		t.Helper()
		if got := entries(t, a, noon.Add(-time.Hour), now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	all("x 2h0m0s complete5, y 10h0m0s+ 0, z 10h0m0s+ 0")
	held, last, err := b.Recall(t.Context())
	if err != nil || len(held) != 2 || held[0].Key != key("y") || !held[0].At.Equal(noon) || *held[0].Hold != *hold("y", noon).Hold || !last.Equal(now) {
		t.Fatalf("recalled %+v, %s, %v", held, last, err)
	}
	// An end that was not seen gives way to one that was, and no end to a second one.
	put(t, a, end("y", noon.Add(time.Hour), ledger.EndUnseen))
	put(t, b, end("y", noon.Add(3*time.Hour), "failed"))
	put(t, a, end("y", noon.Add(time.Hour), ledger.EndUnseen), end("x", noon.Add(9*time.Hour), "complete"))
	all("x 2h0m0s complete5, y 3h0m0s failed0, z 10h0m0s+ 0")
	if ended, err := a.Ended(t.Context(), noon.Add(150*time.Minute)); err != nil || len(ended) != 1 || !ended[key("y")] {
		t.Errorf("ended are %v, %v", ended, err)
	}
	// Only what lies within the time is read.
	if got := entries(t, b, noon.Add(150*time.Minute), noon.Add(4*time.Hour)); got != "y 30m0s failed0, z 1h30m0s+ 0" {
		t.Errorf("got %q", got)
	}
	// All of a batch is stored, or nothing.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Append(ctx, []ledger.Record{hold("never", noon)}); err == nil {
		t.Error("a batch that was canceled is stored")
	}
	broken := use("z", noon, 1)
	broken.Task = "bad\x00text"
	if err := a.Append(t.Context(), []ledger.Record{hold("never", noon), broken}); err == nil {
		t.Error("text that the database cannot hold is stored")
	}
	all("x 2h0m0s complete5, y 3h0m0s failed0, z 10h0m0s+ 0")
	// What is old goes; what is held stays.
	now = noon.AddDate(0, 0, 31)
	put(t, b, seen(now))
	if got := entries(t, b, noon.Add(-time.Hour), noon.Add(10*time.Hour)); got != "z 10h0m0s+ 0" {
		t.Errorf("after a month: %q", got)
	}
}

// Tables of a later release are not touched.
func TestPostgresOfALaterVersionIsRefused(t *testing.T) {
	s := open(t, server(t), "a", time.Now)
	if err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Exec("UPDATE gpu_ledger_schema SET version = 2"); err != nil {
		t.Fatal(err)
	}
	next := open(t, s.URL, "b", time.Now)
	if err := next.Append(t.Context(), []ledger.Record{seen(noon)}); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Error(err)
	}
}

// TestAServerThatComesAndGoesIsWaitedFor: the store needs no restart when the server has one,
// nor when it was away at first.
func TestAServerThatComesAndGoesIsWaitedFor(t *testing.T) {
	url, start := cluster(t)
	s := open(t, url, "a", time.Now)
	for n := range 2 {
		if err := s.Append(t.Context(), []ledger.Record{seen(noon)}); err == nil {
			t.Errorf("time %d: it was stored nowhere", n)
		}
		stop := start()
		at := time.Now().UTC().Truncate(time.Microsecond)
		put(t, s, seen(at))
		if _, last, err := s.Recall(t.Context()); err != nil || !last.Equal(at) {
			t.Errorf("time %d: recalled %s, %v", n, last, err)
		}
		stop()
	}
}

// A server that does not answer is an error now, and no reason not to start.
func TestAServerThatIsAwayIsWaitedFor(t *testing.T) {
	s := open(t, "postgres:///postgres?user=ledger&sslmode=disable&host="+t.TempDir(), "a", time.Now)
	if err := s.Append(t.Context(), []ledger.Record{seen(noon)}); err == nil {
		t.Error("it was stored nowhere")
	}
	if _, _, err := s.Recall(t.Context()); err == nil {
		t.Error("it was recalled from nowhere")
	}
}
