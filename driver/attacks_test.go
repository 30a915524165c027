// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
)

// preserve is what no attack may read, change, mount or signal: a directory of the
// host, a neighbor's allocation, a process, and a socket that must see no connection.
type preserve struct {
	t        *testing.T
	dirs     []string
	neighbor *boundProcess
	listener net.Listener
	visitors atomic.Int64
	before   string
}

func newPreserve(t *testing.T, e *env) *preserve {
	t.Helper()
	alloc := e.quietTask(defaultTaskConfig("true"))
	p := &preserve{t: t, dirs: []string{filepath.Join(e.dir, "canary"), alloc.TaskDir().LocalDir, alloc.TaskDir().SecretsDir, alloc.TaskDir().SharedAllocDir}}
	must.NoError(t, os.Mkdir(p.dirs[0], 0o777))
	for _, dir := range p.dirs {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(canarySong+"\n"), 0o666))
		must.NoError(t, os.WriteFile(filepath.Join(dir, canaryName), nil, 0o666))
	}
	var err error
	p.neighbor, err = startBound(exec.Command("sleep", "100000"))
	must.NoError(t, err)
	t.Cleanup(p.neighbor.kill)
	p.listener, err = net.Listen("unix", filepath.Join(p.dirs[0], "socket"))
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.listener.Close() })
	go func() {
		for {
			c, err := p.listener.Accept()
			if err != nil {
				return
			}
			p.visitors.Add(1)
			_ = c.Close()
		}
	}()
	p.before = p.state()
	return p
}

func (p *preserve) files() []string {
	var all []string
	for _, dir := range p.dirs {
		all = append(all, filepath.Join(dir, "file"))
	}
	return append(all, filepath.Join(p.dirs[0], "socket"))
}

// state is all that can be seen of it, and of what the host mounts where it must
// not change.
func (p *preserve) state() string {
	p.t.Helper()
	var all strings.Builder
	for _, dir := range p.dirs {
		must.NoError(p.t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var stat unix.Stat_t
			if err := unix.Lstat(path, &stat); err != nil {
				return err
			}
			text, _ := os.ReadFile(path)
			fmt.Fprintf(&all, "%s %o %d:%d %d %d %q\n", path, stat.Mode, stat.Uid, stat.Gid, stat.Nlink, stat.Mtim.Nano(), text)
			return nil
		}))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must.NoError(p.t, err)
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[4]
		for _, root := range append([]string{"/dev", "/proc", "/sys", "/etc"}, p.dirs...) {
			if point == root || strings.HasPrefix(point, root+"/") && !strings.HasPrefix(point, "/sys/fs/cgroup/") {
				fmt.Fprintf(&all, "mount on %s\n", point)
			}
		}
	}
	for _, setting := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper"} {
		text, _ := os.ReadFile(setting)
		fmt.Fprintf(&all, "%s %q\n", setting, text)
	}
	return all.String()
}

// harmed says what an attack did, "" for nothing.
func (p *preserve) harmed(output string) string {
	p.t.Helper()
	switch now := p.state(); {
	case now != p.before:
		return "the host was changed, from\n" + p.before + "to\n" + now
	case strings.Contains(output, canarySong):
		return "a file of the host was read: " + output
	case processGone(p.neighbor.cmd.Process.Pid):
		return "a process of the host was killed"
	case p.visitors.Load() > 0:
		return "a task connected to a socket of the host"
	}
	return ""
}

// attacks is how many jobs are tried with each containerd, and where to begin:
// NOMAD_GPU_ATTACKS and NOMAD_GPU_ATTACK_SEED say otherwise.
func attacks(t *testing.T) (first uint64, count int) {
	t.Helper()
	first, count = 1, 16
	if everything() {
		count = 500
	}
	if text := os.Getenv("NOMAD_GPU_ATTACKS"); text != "" {
		n, err := strconv.Atoi(text)
		must.NoError(t, err)
		count = n
	}
	if text := os.Getenv("NOMAD_GPU_ATTACK_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		must.NoError(t, err)
		first = n
	}
	return first, count
}

// suffers lets an attack happen, and returns what the task said, and why it was
// refused.
func (e *env) suffers(job attack, neighbor int) (string, error) {
	e.t.Helper()
	cfg := job.prepare(e, neighbor)
	out, err := os.OpenFile(cfg.StdoutPath, os.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(e.t, err)
	defer out.Close()
	for _, s := range job.swaps {
		path := filepath.Join(cfg.AllocDir, s.path)
		if _, err := os.Lstat(path); err == nil {
			defer swapWithLink(e.t, path, s.to)()
		}
	}
	began := time.Now()
	_, _, err = e.harness.StartTask(cfg)
	must.Less(e.t, patience, time.Since(began), must.Sprintf("a start did not end: %+v", job))
	if err == nil {
		e.wait(cfg.ID)
		must.NoError(e.t, e.harness.DestroyTask(cfg.ID, true))
	}
	text, readErr := io.ReadAll(out)
	if !errors.Is(readErr, unix.EAGAIN) {
		must.NoError(e.t, readErr)
	}
	return string(text), err
}

// TestAttacks runs made-up hostile jobs and looks at what none of them may touch.
// Whether one is refused or runs does not matter, as long as it ends.
func TestAttacks(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		p := newPreserve(t, e)
		volume := filepath.Join(e.dir, "volume")
		must.NoError(t, os.Mkdir(volume, 0o777))
		byDefault := e.with(func(c *config.Config) { c.Volumes.Enabled = false })
		withVolumes := e.with(func(c *config.Config) { c.Volumes.AllowPaths = []string{volume} })
		first, count := attacks(t)
		ran := 0
		for seed := first; seed < first+uint64(count); seed++ {
			a := &attacker{Rand: rand.New(rand.NewPCG(seed, 0)), dirs: p.dirs, files: p.files()}
			node, job := pick(a, byDefault, withVolumes), a.attack(volume)
			output, err := node.suffers(job, p.neighbor.cmd.Process.Pid)
			if harm := p.harmed(output + fmt.Sprint(err)); harm != "" {
				t.Fatalf("NOMAD_GPU_ATTACK_SEED=%d: %s\njob: %+v\nerror: %v", seed, harm, job, err)
			}
			if left := node.leftovers(); left != nil {
				t.Fatalf("NOMAD_GPU_ATTACK_SEED=%d: it left %q\njob: %+v\nerror: %v", seed, left, job, err)
			}
			node.allocs = nil
			if err == nil {
				ran++
			} else if testing.Verbose() {
				t.Logf("%d: %v", seed, err)
			}
		}
		t.Logf("%d of %d attacks ran, the others were refused", ran, count)
		must.Greater(t, count/8, ran, must.Sprint("hardly an attack gets as far as to run; what is it worth?"))
	})
}
