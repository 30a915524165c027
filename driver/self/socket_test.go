// SPDX-License-Identifier: MPL-2.0

package self

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// counted answers with what it was asked, and counts how much it does at once.
type counted struct {
	asked, now, most atomic.Int64
	name             string
	foreign          bool
	hold             chan struct{}
}

func (c *counted) Mine(pid int) error {
	if c.foreign || pid != os.Getpid() {
		return fmt.Errorf("process %d is not the task's", pid)
	}
	return nil
}

func (c *counted) Answer(ctx context.Context, r gpu.SelfRequest) gpu.SelfAnswer {
	c.asked.Add(1)
	now := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	if c.hold != nil {
		select {
		case <-c.hold:
		case <-ctx.Done():
		}
	}
	return gpu.SelfAnswer{Message: c.name + " " + string(r.Action)}
}

// serving has a socket serve for the length of a test, and returns its directory and what
// ends it.
func serving(t *testing.T, dir string, task Answerer) (end func()) {
	t.Helper()
	s, err := Listen(dir, task)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Serve(ctx) }()
	end = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(end)
	return end
}

const statusLine = `{"version":1,"action":"status"}` + "\n"

// say sends text as it is, and returns what comes back.
func say(dir, text string) (gpu.SelfAnswer, error) {
	conn, err := net.Dial("unix", filepath.Join(dir, socketName))
	if err != nil {
		return gpu.SelfAnswer{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = io.WriteString(conn, text) }() // which the other end may not read to the end
	return heard(conn)
}

// heard is what a client is answered.
func heard(conn net.Conn) (gpu.SelfAnswer, error) {
	var a gpu.SelfAnswer
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

func TestRequestsAreBoundedAndStrict(t *testing.T) {
	dir := t.TempDir()
	serving(t, dir, &counted{name: "task"})
	for name, tc := range map[string]struct{ text, want string }{
		"a request":              {statusLine, ""},
		"garbage":                {"\x00\xff GET / HTTP/1.1\n", "is not valid (one line of JSON"},
		"an empty line":          {"\n", "is not valid (one line of JSON"},
		"more than one value":    {strings.TrimSpace(statusLine) + "{}\n", "nothing after it"},
		"a key that is not":      {`{"version":1,"action":"status","task":"other"}` + "\n", "unknown field"},
		"an action that is not":  {`{"version":1,"action":"rm"}` + "\n", `action "rm" is not valid (one of [status`},
		"another version":        {`{"version":2,"action":"status"}` + "\n", "version 2 is not valid (this driver knows 1)"},
		"a line without an end":  {strings.Repeat("x", gpu.MaxSelfRequest+1), "at most 4096 bytes"},
		"a very long line":       {`{"version":1,"action":"` + strings.Repeat("a", 1<<20) + "\"}\n", "at most 4096 bytes"},
		"deeply nested":          {strings.Repeat("[", 4000) + "\n", "is not valid (one line of JSON"},
		"an action of great len": {`{"version":1,"action":"` + strings.Repeat("a", 4000) + "\"}\n", "is not valid (one of"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := say(dir, tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" && a.Message != "task status" || !strings.Contains(a.Error, tc.want) || len(a.Error) > 400 {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// Clients that send nothing, and that take no answer, are given up after a while.
func TestSlowClientsAreGivenUp(t *testing.T) {
	dir := t.TempDir()
	serving(t, dir, &counted{name: "task"})
	var silent []net.Conn
	for n := range 2 * atOnce {
		conn, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if n%2 == 0 {
			_, _ = io.WriteString(conn, statusLine) // and reads nothing
		} else {
			silent = append(silent, conn)
		}
	}
	if a, err := say(dir, statusLine); err != nil || a.Message != "task status" {
		t.Errorf("got %+v, %v", a, err)
	}
	for _, conn := range silent {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if a, err := heard(conn); err != nil || a.Error != "request: no complete line came within 2s" {
			t.Errorf("a silent client got %+v, %v", a, err)
		}
	}
}

// An answer that no client would take in whole is replaced by one that says so.
func TestAnswersAreBounded(t *testing.T) {
	beside, err := json.Marshal(gpu.SelfAnswer{Version: gpu.SelfVersion, Message: " status"})
	if err != nil {
		t.Fatal(err)
	}
	most := gpu.MaxSelfAnswer - len("\n") - len(beside)
	for name, length := range map[string]int{"one that just fits": most, "one byte more": most + 1, "twice as much": 2 * most} {
		t.Run(name, func(t *testing.T) {
			dir, task := t.TempDir(), strings.Repeat("x", length)
			serving(t, dir, &counted{name: task})
			want := gpu.SelfAnswer{Version: gpu.SelfVersion, Message: task + " status"}
			if length > most {
				want = gpu.SelfAnswer{Version: gpu.SelfVersion, Error: "the answer could not be written in 65536 bytes"}
			}
			if a, err := say(dir, statusLine); err != nil || !reflect.DeepEqual(a, want) {
				t.Errorf("got %.200v, %v", a, err)
			}
		})
	}
}

// What one task keeps busy is its own socket.
func TestABusyTaskDelaysNoOther(t *testing.T) {
	busy, other := t.TempDir(), t.TempDir()
	task := &counted{name: "busy", hold: make(chan struct{})}
	serving(t, busy, task)
	serving(t, other, &counted{name: "other"})
	var clients sync.WaitGroup
	for range 2 * atOnce {
		clients.Go(func() {
			if a, err := say(busy, statusLine); err != nil || a.Message != "busy status" {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	for task.now.Load() < atOnce {
		time.Sleep(time.Millisecond)
	}
	if a, err := say(other, statusLine); err != nil || a.Message != "other status" || task.now.Load() != atOnce {
		t.Errorf("got %+v, %v, with %d busy", a, err, task.now.Load())
	}
	close(task.hold)
	clients.Wait()
}

// However many ask at once, so many are answered at a time, and so many in a second.
func TestAFloodIsHeldInTheKernel(t *testing.T) {
	dir, task := t.TempDir(), &counted{name: "task"}
	end := serving(t, dir, task)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var clients sync.WaitGroup
	for range 100 {
		clients.Go(func() {
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, socketName))
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, statusLine)
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.Copy(io.Discard, conn)
				stop()
				_ = conn.Close()
			}
		})
	}
	clients.Wait()
	end()
	most := int64(burst + perSecond*(time.Since(begun).Seconds()+1))
	if got := task.asked.Load(); got > most || got == 0 {
		t.Errorf("%d requests were answered in %s", got, time.Since(begun))
	}
	if got := task.most.Load(); got > atOnce {
		t.Errorf("%d were answered at once", got)
	}
}

// What a task is not, the kernel says.
func TestAnotherTasksProcessIsRefused(t *testing.T) {
	dir, task := t.TempDir(), &counted{foreign: true}
	serving(t, dir, task)
	a, err := say(dir, statusLine)
	if err != nil || !strings.Contains(a.Error, "is not the task's") || task.asked.Load() != 0 {
		t.Errorf("got %+v, %v", a, err)
	}
}

// A driver that takes a task up again serves it under the same name, whatever the one
// before has left there.
func TestASocketTakesThePlaceOfTheOneBefore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("a-long-path", 12))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	short := fmt.Sprintf("/proc/self/fd/%d", at.Fd())
	first := serving(t, dir, &counted{name: "first"})
	serving(t, dir, &counted{name: "second"})
	if a, err := say(short, statusLine); err != nil || a.Message != "second status" {
		t.Errorf("got %+v, %v", a, err)
	}
	first()
	if a, err := say(short, statusLine); err != nil || a.Message != "second status" {
		t.Errorf("when the first has ended: %+v, %v", a, err)
	}
	// A directory in the place of the next socket, or a link, is not followed.
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, nextName)); err != nil {
		t.Fatal(err)
	}
	serving(t, dir, &counted{name: "third"})
	if a, err := say(short, statusLine); err != nil || a.Message != "third status" {
		t.Errorf("got %+v, %v", a, err)
	}
	info, err := os.Stat(filepath.Join(dir, socketName))
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("got %v, %v", info, err)
	}
}

// A task that has ended keeps nothing that waits for it.
func TestServingEndsWithTheTask(t *testing.T) {
	dir, task := t.TempDir(), &counted{hold: make(chan struct{})}
	end := serving(t, dir, task)
	said := make(chan error, 1)
	go func() { _, err := say(dir, statusLine); said <- err }()
	for task.now.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	end()
	<-said
	if _, err := net.Dial("unix", filepath.Join(dir, socketName)); err == nil {
		t.Error("it still answers")
	}
}

func TestPlacesWhereNoSocketCanBe(t *testing.T) {
	if _, err := Listen(filepath.Join(t.TempDir(), "none"), &counted{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(link, &counted{}); err == nil {
		t.Error("a link was followed")
	}
	for _, name := range []string{socketName, nextName} {
		taken := t.TempDir()
		if err := os.MkdirAll(filepath.Join(taken, name, "inner"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(taken, &counted{}); err == nil {
			t.Errorf("a socket with a directory in the place of %s was said to listen", name)
		}
	}
}
