// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
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

	"golang.org/x/sys/unix"

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
	group := b.unifiedGroup("nomad-gpu-test-flood-of-the-gate")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: group}
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

// unifiedGroup makes a control group of cgroup v2, and opens it. Kernels have that hierarchy also where
// all controllers are in those of v1; the mount is the test's alone, and ends with it.
func (b *bench) unifiedGroup(name string) int {
	b.t.Helper()
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		b.t.Skip("this machine has no cgroup v2, or this is not root: ", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err == nil {
		name = fmt.Sprint(name, "-", os.Getpid(), "-", time.Now().UnixNano())
		err = errors.Join(unix.Close(fs), unix.Mkdirat(root, name, 0o755))
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _, _ = unix.Unlinkat(root, name, unix.AT_REMOVEDIR), unix.Close(root) })
	group, err := unix.Openat(root, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = unix.Close(group) })
	return group
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
