// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// idleKeeper is a keeper that does nothing by itself, and has no daemon.
func idleKeeper(t *testing.T) *keeper {
	t.Helper()
	d := dirsIn(t.TempDir(), device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 22, 9, 0, 0, 500, time.UTC)
	return &keeper{
		log: hclog.NewNullLogger(), changed: func() {}, now: func() time.Time { return now },
		control:   control{Control: mpsctl.Control{PipeDir: d.own, Program: "/nonexistent", Timeout: time.Minute}, uuid: device, dirs: d},
		intervals: intervals{maxFailures: 3}, reload: make(chan struct{}, 1), empty: make(chan time.Time, 1),
	}
}

func TestSlowIsNotDead(t *testing.T) {
	k, untrue := idleKeeper(t), errors.New("it lies")
	slow := fmt.Errorf("ask: %w", mpsctl.ErrTimeout)
	for _, tc := range []struct {
		failures int
		err      error
		want     int
		ends     bool
	}{
		{0, nil, 0, false}, {2, nil, 0, false},
		{0, untrue, 0, true}, {2, untrue, 0, true},
		{0, slow, 1, false}, {1, slow, 2, false}, {2, slow, 3, true}, {7, slow, 8, true},
	} {
		failures, err := k.onProbe(tc.failures, tc.err)
		if failures != tc.want || (err != nil) != tc.ends || tc.ends && !errors.Is(err, tc.err) {
			t.Errorf("%+v: %d, %v", tc, failures, err)
		}
	}
}

func TestDeviceIsEmptyWhenNoTaskWasThereAfterTheDaemonWasLost(t *testing.T) {
	at := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		ready       bool
		down, empty time.Time
		want        bool
	}{
		"no task since":              {false, at, at.Add(time.Second), true},
		"it was empty before":        {false, at, at.Add(-time.Second), false},
		"at that very moment":        {false, at, at, false},
		"tasks are there":            {false, at, time.Time{}, false},
		"the daemon is ready":        {true, at, at.Add(time.Second), false},
		"it is not known since when": {false, time.Time{}, at, false},
	} {
		k := idleKeeper(t)
		k.status.Ready, k.downSince, k.emptyAt = tc.ready, tc.down, tc.empty
		if got := k.deviceEmpty(); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestDaemonThatDoesNotAnswerIsReplacedAfterSeveralAttempts(t *testing.T) {
	at := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	for _, reason := range []error{mpsctl.ErrTimeout, errBusy} {
		k := idleKeeper(t)
		// With tasks it is kept, and the reason says until when.
		for range 5 {
			var advice *actionError
			if err := k.replaceIfEmpty(reason); !errors.As(err, &advice) || !strings.Contains(advice.action, "when no task is on the device") || k.ended != "" {
				t.Fatalf("with tasks: %v, %q", err, k.ended)
			}
		}
		k.unanswered, k.downSince, k.emptyAt = 0, at, at.Add(time.Second)
		for attempt := 1; attempt <= 3; attempt++ {
			if err := k.replaceIfEmpty(reason); !errors.Is(err, reason) {
				t.Errorf("attempt %d: %v", attempt, err)
			}
			if replaced := k.ended != ""; replaced != (attempt == 3) {
				t.Errorf("after %d attempts it was replaced: %t", attempt, replaced)
			}
		}
		if k.unanswered != 0 || !strings.Contains(k.ended, "did not answer") {
			t.Errorf("the next has %d attempts behind it, and ended because %q", k.unanswered, k.ended)
		}
		// Any answer begins the count anew.
		_ = k.replaceIfEmpty(reason)
		if other := errors.New("untrue"); k.replaceIfEmpty(other) != other || k.unanswered != 0 {
			t.Errorf("an answer leaves the count at %d", k.unanswered)
		}
	}
}

func TestGenerationsOfADaemon(t *testing.T) {
	k := idleKeeper(t)
	first, err := k.remember(process{PID: 10, Start: 100}, nil)
	if err != nil || first.Generation != 1 || first.LastEnd != "" || !first.StartedAt.Equal(time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)) {
		t.Fatalf("the first: %+v, %v", first, err)
	}
	if same, err := k.remember(process{PID: 10, Start: 100}, nil); err != nil || same.Generation != 1 {
		t.Errorf("the same: %+v, %v", same, err)
	}
	// A process with the same number is another daemon.
	if next, err := k.remember(process{PID: 10, Start: 200}, nil); err != nil || next.Generation != 2 || next.LastEnd != "it ended while no plugin looked after it" {
		t.Errorf("the next: %+v, %v", next, err)
	}
	k.daemon.Generation = 2
	if next, err := k.remember(process{PID: 11, Start: 300}, nil); err != nil || next.Generation != 3 || next.LastEnd != "it ended" {
		t.Errorf("beside this plugin: %+v, %v", next, err)
	}
	k.ended = "it died"
	if next, err := k.remember(process{PID: 12, Start: 400}, nil); err != nil || next.Generation != 4 || next.LastEnd != "it died" || k.ended != "" {
		t.Errorf("with a reason: %+v, %v, then %q", next, err, k.ended)
	}
	// Without its record the generation still grows beyond what was said.
	if err := os.Remove(k.recordPath()); err != nil {
		t.Fatal(err)
	}
	k.status.Generation = 4
	for name, record := range map[string]string{"gone": "", "unreadable": "{"} {
		if record != "" {
			if err := os.WriteFile(k.recordPath(), []byte(record), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if next, err := k.remember(process{PID: 13, Start: 500}, nil); err != nil || next.Generation != 5 {
			t.Errorf("the record is %s: %+v, %v", name, next, err)
		}
	}
	if err := os.RemoveAll(k.control.dirs.base); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.control.dirs.base, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.remember(process{PID: 14, Start: 600}, nil); err == nil {
		t.Error("a record that cannot be written is no error")
	}
}

// What a daemon has in its shared memory when it is first seen is its own, but for what
// was there before it.
func TestFilesOfADaemon(t *testing.T) {
	k := idleKeeper(t)
	for _, name := range []string{"strange", "cuda.shm", "other"} {
		if err := os.WriteFile(filepath.Join(k.control.dirs.shm, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record, err := k.remember(process{PID: 10, Start: 100}, []string{"strange"})
	if err != nil || fmt.Sprint(record.Own) != "[cuda.shm other]" {
		t.Errorf("its files are %v, %v", record.Own, err)
	}
}

func TestStatusSaysWhySinceWhenAndWhatToDo(t *testing.T) {
	k := idleKeeper(t)
	changes := 0
	k.changed = func() { changes++ }
	k.spec = Spec{UUID: device, Percent: 80}
	began := k.now()

	k.markNotReady(errNoMemoryLimits)
	if s := k.Status(); s.Ready || !s.Settled || s.Reason != errNoMemoryLimits.reason || s.Action != errNoMemoryLimits.action || !s.Since.Equal(began.Truncate(time.Second)) || changes != 1 {
		t.Errorf("after %d changes: %+v", changes, s)
	}
	later := began.Add(time.Hour)
	k.now = func() time.Time { return later }
	k.markNotReady(errNoMemoryLimits) // the same again is no change, and has not begun now
	if s := k.Status(); changes != 1 || !s.Since.Equal(began.Truncate(time.Second)) || !k.downSince.Equal(began) {
		t.Errorf("after %d changes: %+v", changes, s)
	}
	k.markNotReady(&serverError{ServerFault, "a fault", 4711})
	if s := k.Status(); s.Action != "" || s.Server != ServerFault || s.Culprit != 4711 || changes != 2 {
		t.Errorf("after %d changes: %+v", changes, s)
	}
	k.markReady(daemonRecord{Process: process{PID: 7, Start: 8}, Generation: 3, StartedAt: began, LastEnd: "it died"}, k.spec, features{multiUser: true, priorities: true})
	if s := k.Status(); !s.Ready || s.Reason != "" || s.Action != "" || !s.Since.IsZero() || s.PID != 7 || s.Generation != 3 || s.LastEnd != "it died" ||
		s.Server != ServerActive || !s.MultiUser || !s.Priorities || changes != 3 {
		t.Errorf("after %d changes: %+v", changes, s)
	}
	k.markNotReady(errors.New("it died"))
	if s := k.Status(); s.Ready || s.PID != 0 || s.Server != "" || !s.Since.Equal(later.Truncate(time.Second)) || !k.downSince.Equal(later) || s.Generation != 3 {
		t.Errorf("the next time: %+v", s)
	}
	// Limits that are not those which are wanted by now make nothing ready.
	k.markReady(daemonRecord{Process: process{PID: 7, Start: 8}, Generation: 4}, Spec{UUID: device, Percent: 50}, features{})
	if s := k.Status(); s.Ready || k.process() != (process{PID: 7, Start: 8}) {
		t.Errorf("with other limits: %+v of %v", s, k.process())
	}
}

func TestWhatIsWantedAnew(t *testing.T) {
	k := idleKeeper(t)
	k.spec = Spec{UUID: device, Percent: 80}
	k.status.Ready = true
	reloaded := func() bool {
		select {
		case <-k.reload:
			return true
		default:
			return false
		}
	}
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	k.want(Spec{UUID: device, Percent: 80, EmptyAt: at})
	if !k.Status().Ready || reloaded() || !k.emptyAt.Equal(at) || !(<-k.empty).Equal(at) {
		t.Error("that no task is there is taken for other limits, or lost")
	}
	k.want(Spec{UUID: device, Percent: 80})
	if !k.emptyAt.Equal(at) || len(k.empty) != 0 {
		t.Error("a moment at which a task may be there is taken for one without")
	}
	for range 2 { // without a reader, and want does not wait
		k.want(Spec{UUID: device, Percent: 80, EmptyAt: at})
	}
	k.want(Spec{UUID: device, Percent: 50})
	if s := k.Status(); s.Ready || s.Reason != errOtherLimits.Error() || k.wanted().Percent != 50 {
		t.Errorf("with other limits: %+v", s)
	}
	k.want(Spec{UUID: device, Percent: 40})
	if !reloaded() || reloaded() {
		t.Error("other limits are not taken up once")
	}
}

// The device's own daemon may have tasks although its socket is gone; others have none.
func TestLeftoversWithoutASocket(t *testing.T) {
	k := idleKeeper(t)
	k.control.Program = "/usr/bin/nvidia-cuda-mps-control"
	ended := map[int]chan error{}
	for range 2 {
		cmd := exec.Command("/bin/sh")
		cmd.Args = []string{"nvidia-cuda-mps-control", "-c", "read x; true", "-d"}
		cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + k.control.dirs.pipe}
		stdin, err := cmd.StdinPipe() // on which it waits
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		ended[cmd.Process.Pid] = end
		go func() { end <- cmd.Wait() }()
		defer func() { _ = cmd.Process.Kill() }()
	}
	var left []process
	for deadline := time.Now().Add(time.Minute); len(left) < 2 && time.Now().Before(deadline); {
		left = k.control.running(roleDaemon) // until both have their own arguments
		time.Sleep(10 * time.Millisecond)
	}
	if len(left) != 2 {
		t.Fatalf("%v run", left)
	}
	// Its own is the one on record, wherever the list has it.
	for _, own := range left {
		if err := k.writeRecord(daemonRecord{Process: own, Generation: 1}); err != nil {
			t.Fatal(err)
		}
		err := k.clearLeftovers()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d, its control daemon, lives, but its socket", own.PID)) || !left[0].Alive() || !left[1].Alive() {
			t.Fatalf("with tasks: %v", err)
		}
	}
	k.downSince, k.emptyAt = k.now(), k.now().Add(time.Second)
	if err := k.clearLeftovers(); err != nil {
		t.Fatal(err)
	}
	for _, p := range left {
		<-ended[p.PID]
		if p.Alive() {
			t.Error("it lives on without tasks")
		}
	}
}

func TestCommandsThatABranchKnows(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "control")
	for answer, want := range map[string]struct {
		known  bool
		failed bool
	}{
		"echo 0":                         {true, false},
		"true":                           {true, false},
		`echo 'Unknown command "q"'`:     {false, false},
		"echo 'Insufficient privileges'": {false, true},
		"echo broken >&2; exit 3":        {false, true},
	} {
		if err := os.WriteFile(script, []byte("#!/bin/sh\ncat >/dev/null\n"+answer+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		c := control{Control: mpsctl.Control{Program: script, PipeDir: filepath.Join(dir, "pipe"), Timeout: time.Minute}}
		known, err := c.knows(context.Background(), "q")
		if known != want.known || (err != nil) != want.failed {
			t.Errorf("%s: %t, %v", answer, known, err)
		}
	}
}

// What is confirmed is the daemon, that it has a server which takes clients, that the
// server is the one with the tasks' partitions, and its limits.
func TestDaemonAndServerAreConfirmed(t *testing.T) {
	const daemon, limits = "get_default_device*) echo 8G;;\nget_default_active*) echo 80.0;;\n", "get_device_pinned*) echo 8G;;\nget_active*) echo 80.0;;\n"
	const active = "get_server_list) echo 76; echo 77;;\n'get_server_status 77') echo ACTIVE;;\n"
	for name, tc := range map[string]struct {
		answers string
		server  int // that has the partitions
		says    string
	}{
		"all is well":             {daemon + active + limits, 0, ""},
		"with its partitions":     {daemon + active + limits, 77, ""},
		"another's partitions":    {daemon + active + limits, 76, errPartitionsLost.Error()},
		"other limits":            {"get_default_device*) echo 4G;;\n", 0, `the memory limit of the daemon is "4G"`},
		"no server":               {daemon + "get_server_list) true;;\n", 0, "its server has ended"},
		"no answer about servers": {daemon + "get_server_list) exit 3;;\n", 0, "exit status 3"},
		"a server in FAULT":       {daemon + "get_server_list) echo 77;;\n'get_server_status 77') echo FAULT;;\n" + limits, 0, "a client had a fatal GPU error"},
		"a server with others":    {daemon + active + "get_device_pinned*) echo 9G;;\n", 0, `the memory limit of the server is "9G"`},
	} {
		k := idleKeeper(t)
		k.control.Control = limitsScript(t, tc.answers).Control
		k.health.served = 77
		err := k.legacy().confirm(t.Context(), Spec{UUID: device, MemoryMiB: 8192, Percent: 80}, tc.server)
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that is listed in FAULT, or not any more, is judged by whether it ever took
// clients and whether it lives on; one that initializes may do so for a while.
func TestServerIsJudgedByWhatItDid(t *testing.T) {
	fault := &serverError{state: ServerFault, reason: "a fault"}
	starts := &serverError{state: ServerInitializing, reason: "it starts"}
	gone := fmt.Errorf("asked: %w", mpsctl.ErrNoServer)
	const ended, living = math.MaxInt32, 1
	for name, tc := range map[string]struct {
		server, served int
		err            error
		passed         time.Duration // since it was seen to initialize
		want           string
		state          ServerState
	}{
		"well":                               {server: living},
		"a fault after it served":            {server: ended, served: ended, err: fault, want: "a fault", state: ServerFault},
		"a fault of another, which lives":    {server: living, served: 5, err: fault, want: "a fault", state: ServerFault},
		"a fault of one that never served":   {server: ended, err: fault, want: "its server does not start: no device"},
		"not listed any more":                {server: ended, err: gone, want: "its server does not start: no device"},
		"not listed any more, after serving": {server: ended, served: ended, err: gone, want: "its server has ended"},
		"it initializes":                     {server: living, err: starts, want: "it starts", state: ServerInitializing},
		"it initializes for a while":         {server: living, err: starts, passed: maxInitializing, want: "it starts", state: ServerInitializing},
		"it initializes for too long":        {server: living, err: starts, passed: maxInitializing + 1, want: "its server has been initializing for more than a minute"},
		"it answers nothing":                 {server: living, err: errSlow, want: errSlow.Error()},
	} {
		k := idleKeeper(t)
		k.control.Timeout = time.Millisecond
		k.health.served = tc.served
		if tc.passed > 0 {
			k.health.starting, k.health.since = tc.server, k.now().Add(-tc.passed)
		}
		log := fmt.Sprintf("[2026-11-22 09:00:00.000 Other 77] Failed to start : another\n[2026-11-22 09:00:00.000 Other %d] Failed to start : no device\n", ended)
		if err := os.WriteFile(filepath.Join(k.control.dirs.log, serverLog), []byte(log), 0o644); err != nil {
			t.Fatal(err)
		}
		err := k.legacy().judge(t.Context(), tc.server, func(int64) error { return tc.err })
		var not *serverError
		if errors.As(err, &not); fmt.Sprint(err) != cmp.Or(tc.want, "<nil>") || not != nil && not.state != tc.state {
			t.Errorf("%s: %v, %+v", name, err, not)
		}
	}
}

// What fails on the way to a daemon is told, and nothing is started after it.
func TestDaemonIsNotAskedForWhereItsDirectoriesCannotBe(t *testing.T) {
	k := idleKeeper(t)
	if _, err := k.control.state(t.Context(), os.Getpid()); err == nil {
		t.Error("the state of a server is known without a daemon")
	}
	if err := errors.Join(os.RemoveAll(k.control.dirs.pipe), os.WriteFile(k.control.dirs.pipe, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := k.acquire(t.Context()); err == nil || !strings.Contains(err.Error(), k.control.dirs.pipe) {
		t.Errorf("a file lies where the sockets belong: %v", err)
	}
}
