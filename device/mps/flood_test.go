// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// floodCommand runs the test binary as a task that keeps a gate busy with as many threads
// as it can: args are the socket and the flood.
const floodCommand = "flood"

const flooders = 32

// floods are what a thread of such a task does again and again.
var floods = map[string]func(socket string){
	"connect and close": func(socket string) {
		if c, err := mpswire.Dial(socket); err == nil {
			c.Close()
		}
	},
	"read the greeting and close": func(socket string) {
		if c, err := mpswire.Dial(socket); err == nil {
			_ = c.ExpectHello()
			c.Close()
		}
	},
	"get a server": func(socket string) { _ = becomeClient(socket) },
}

func flood(args []string) {
	runtime.GOMAXPROCS(flooders)
	for range flooders {
		go func() {
			for {
				floods[args[1]](args[0])
			}
		}()
	}
	fmt.Println("begun")
	select {}
}

// flooding starts such a task, in a control group of its own.
func (b *bench) flooding(socket, how string) (stop func()) {
	b.t.Helper()
	cmd := exec.Command("/proc/self/exe", floodCommand, socket, how)
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(root, "nomad-gpu-test-flood-of-the-gate-")
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { _ = os.Remove(dir) })
		group, err := os.Open(dir)
		if err != nil {
			b.t.Fatal(err)
		}
		defer group.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
		break
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	b.t.Cleanup(stop)
	_, _ = out.Read(make([]byte, 16))
	return stop
}

// introductions is how long each of a number of programs, one after the other, took to get
// its server, the shortest first.
func (b *bench) introductions(socket string, count int) []time.Duration {
	b.t.Helper()
	took := make([]time.Duration, count)
	for i := range took {
		began := time.Now()
		if err := becomeClient(socket); err != nil {
			b.t.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took
}

// A task that keeps the gate busy delays its neighbors by less than a second, and fills no
// log, also when it has died with a queue of connections.
func TestAFloodDelaysNoOthers(t *testing.T) {
	for _, v := range []variant{newest, {branch: "555", original: true, memory: true, multiUser: true}} {
		t.Run(v.String(), func(t *testing.T) {
			b := newBenchWith(t, v, false)
			s := b.wantReady()
			const count = 40
			at := func(took []time.Duration, part float64) time.Duration {
				return took[int(part*float64(len(took)-1))].Round(10 * time.Microsecond)
			}
			alone := b.introductions(gateOf(s), count)
			t.Logf("alone: median %s, p99 %s", at(alone, .5), at(alone, .99))
			for how := range floods {
				stop := b.flooding(gateOf(s), how)
				flooded := b.introductions(gateOf(s), count)
				stop()
				t.Logf("while %d threads %s: median %s, p99 %s", flooders, how, at(flooded, .5), at(flooded, .99))
				if usual, worst := at(flooded, .5), at(flooded, .99); usual > time.Second/5 || worst > time.Second {
					t.Errorf("%s: introductions take %s to %s, and %s to %s alone", how, usual, worst, at(alone, .5), at(alone, .99))
				}
			}
			b.oneOfEach()
			text, err := os.ReadFile(filepath.Join(s.LogDir, gateLog))
			if err != nil {
				t.Fatal(err)
			}
			if logged := strings.Count(string(text), "\n"); logged > 2*len(floods) {
				t.Errorf("the gate logged %d lines", logged)
			}
		})
	}
}
