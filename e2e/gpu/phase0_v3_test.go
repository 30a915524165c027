// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// bare3 is a control daemon of MPS v3 as NVIDIA's pages start one, with a server "one" and its
// namespace "a", or skips where the driver has none.
func bare3(t *testing.T, uuid string) mpsctl.V3 {
	t.Helper()
	program, err := exec.LookPath(driver().Program("nvidia-cuda-mps-control"))
	if err != nil {
		t.Skip("no MPS v3: the driver's MPS is not installed")
	}
	dir := t.TempDir()
	c := mpsctl.V3{Control: mpsctl.Control{Program: program, PipeDir: filepath.Join(dir, "pipe"), Timeout: 20 * time.Second,
		Env: []string{"CUDA_VISIBLE_DEVICES=" + uuid, "CUDA_MPS_LOG_DIRECTORY=" + dir, "LD_LIBRARY_PATH=" + libraryPath()}}}
	if found, err := mpsctl.Detect(t.Context(), program, c.Control); err != nil || !found {
		t.Skipf("no MPS v3: -p 3 -h of %s tells of no servers and namespaces (%v)", program, err)
	}
	config := filepath.Join(dir, "mps.toml")
	text := fmt.Sprintf("schema_version = \"1.0\"\n\n[servers.one]\nallowed_devices = %q\n\n[servers.one.namespaces.a]\npinned_memory_limit = \"2G\"\nactive_thread_percentage = \"25\"\n", uuid)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(c.PipeDir, 0o755), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	answer, err := c.Run(t.Context(), program, []string{"-d", "-p", "3", "-m", "-a", config}, "", nil)
	figure(t, "-d -p 3 -m -a: %q, %v", answer, err)
	t.Cleanup(func() { _, _ = c.Run(context.WithoutCancel(t.Context()), program, []string{"-p", "3", "-q"}, "", nil) })
	return c
}

// says asks a daemon and tells what it answered: text, and how the program ended.
func says(t *testing.T, c mpsctl.V3, words ...string) {
	t.Helper()
	answer, err := c.Do(t.Context(), words...)
	figure(t, "%s: %.600q, %v", strings.Join(words, " "), answer, err)
}

// under is a client of one of the daemon's namespaces.
func under(t *testing.T, uuid string, c mpsctl.V3, namespace string, env []string, args ...string) *client {
	t.Helper()
	return start(t, uuid, mps.Status{PipeDir: filepath.Join(c.PipeDir, "one", namespace), LogDir: filepath.Dir(c.PipeDir)}, env, args...)
}

// What NVIDIA's pages of MPS v3 leave open (docs/design/mps3.md).
func TestWhatThePagesOfMPSv3LeaveOpen(t *testing.T) {
	g := idle(t)
	t.Run("is -h answered without a daemon, and what does it list", func(t *testing.T) {
		c := bare3(t, g.UUID)
		c.PipeDir = "/nonexistent"
		answer, err := c.Run(t.Context(), c.Program, []string{"-p", "3", "-h"}, "", nil)
		figure(t, "-p 3 -h: %.2000q, %v", answer, err)
		for _, module := range []string{"server", "namespace", "sm-partition", "client", "device"} {
			answer, err := c.Run(t.Context(), c.Program, []string{"-p", "3", module, "-h"}, "", nil)
			figure(t, "%s -h: %.2000q, %v", module, answer, err)
		}
	})
	t.Run("which states has a server, and how are they told", func(t *testing.T) {
		c := bare3(t, g.UUID)
		last := ""
		for began := time.Now(); time.Since(began) < 3*time.Second; {
			answer, err := c.Do(t.Context(), "server", "list")
			if words := fmt.Sprintf("%q, %v", answer, err); words != last {
				figure(t, "%s after the start: %s", time.Since(began).Round(time.Millisecond), words)
				last = words
			}
		}
		says(t, c, "server", "create", "nowhere", "--uid=0", "--allowed-devices=GPU-00000000-0000-0000-0000-000000000000")
		time.Sleep(2 * time.Second)
		says(t, c, "server", "list", "--format=csv,noheader")
	})
	t.Run("how are errors told", func(t *testing.T) {
		c := bare3(t, g.UUID)
		for _, words := range []string{
			"namespace create A --server=one", "namespace create a --server=one", "namespace create b --server=none", "namespace set a --server=one",
			"namespace set none --server=one --pinned-memory-limit=1G", "namespace set a --server=one --pinned-memory-limit=1", "namespace set a --server=one --active-thread-percentage=101",
			"namespace get a one", "namespace get a one nothing", "namespace delete none --server=one", "namespace delete default --server=one", "client terminate 1", "no such",
		} {
			says(t, c, strings.Fields(words)...)
		}
	})
	t.Run("what do lists and fields look like", func(t *testing.T) {
		c := bare3(t, g.UUID)
		says(t, c, "namespace", "set", "a", "--server=one", "--pinned-memory-limit=1500M")
		for _, words := range []string{"server list", "namespace list", "namespace list --server=one", "namespace list --server=one --format=csv,noheader", "device list --format=csv,noheader",
			"sm-partition list --format=csv,noheader", "client list --all --format=csv,noheader", "namespace get a one pinned-memory-limit", "namespace get a one active-thread-percentage", "namespace get a one client-priority"} {
			says(t, c, strings.Fields(words)...)
		}
	})
	t.Run("is a limit each program's or the namespace's", func(t *testing.T) {
		c := bare3(t, g.UUID)
		first := under(t, g.UUID, c, "a", nil, "hold", "1200")
		figure(t, "the first of a namespace of 2 GiB: %s", first.line(t))
		figure(t, "the second: %s", under(t, g.UUID, c, "a", nil, "hold", "1200").line(t))
		says(t, c, "client", "list", "--server=one", "--format=csv,noheader")
		figure(t, "the first is process %d", first.cmd.Process.Pid)
	})
	t.Run("does a variable lift the limit of a namespace", func(t *testing.T) {
		c := bare3(t, g.UUID)
		for _, limit := range []string{"0=900G", "0=1G", "GPU-00000000-0000-0000-0000-000000000000=1G", "7=1G", "nonsense"} {
			figure(t, "with %s, of 2 GiB: %s", limit, under(t, g.UUID, c, "a", []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + limit}, "hold", "3000").line(t))
		}
	})
	t.Run("what changes beside a client", func(t *testing.T) {
		c := bare3(t, g.UUID)
		figure(t, "a client: %s", under(t, g.UUID, c, "a", nil, "hold", "100").line(t))
		for _, words := range []string{
			"namespace set a --server=one --active-thread-percentage=50", "namespace set a --server=one --pinned-memory-limit=3G", "namespace create c --server=one",
			"namespace set c --server=one --active-thread-percentage=50", "namespace delete a --server=one", "sm-partition create beside --server=one --device=" + g.UUID + " --chunks=1", "sm-partition list --format=csv,noheader",
		} {
			says(t, c, strings.Fields(words)...)
		}
	})
	t.Run("does a client get up to its limit beside an idle one, and give it back", func(t *testing.T) {
		c := bare3(t, g.UUID)
		for _, words := range []string{
			"namespace set a --server=one --active-thread-percentage=75", "namespace create b --server=one", "namespace set b --server=one --active-thread-percentage=75",
		} {
			says(t, c, strings.Fields(words)...)
		}
		rate := func() float64 { return under(t, g.UUID, c, "a", nil, "compute", "3").started(t).rate(t) }
		alone := rate()
		figure(t, "alone, of 75 %%: %.2f launches a second", alone)
		figure(t, "the neighbor, of 75 %% too: %s", under(t, g.UUID, c, "b", nil, "hold", "100").line(t))
		figure(t, "beside it while it is idle: %.3f of that", rate()/alone)
		neighbor := under(t, g.UUID, c, "b", nil, "compute", "8").started(t)
		figure(t, "while it computes: %.3f", rate()/alone)
		figure(t, "the neighbor meanwhile: %.3f", neighbor.rate(t)/alone)
		figure(t, "after it has ended: %.3f", rate()/alone)
	})
	t.Run("which flags have control groups and partitions", func(t *testing.T) {
		c := bare3(t, g.UUID)
		for _, words := range []string{
			"sm-partition create part --server=one --device=" + g.UUID + " --chunks=1", "sm-partition create wide --server=one --device=" + g.UUID + " --chunks=1 --shareable=true --max-chunks=2",
			"sm-partition create more --server=one --device=" + g.UUID + " --chunks=1 --shareable --max-chunks=2", "sm-partition list --format=csv,noheader",
			"namespace set a --server=one --device=" + g.UUID + " --sm-partition=part", "namespace set a --server=one --cgroup=/sys/fs/cgroup/none --cgroup-depth=0", "namespace list --server=one",
			"server set one --timeslice-pct=50",
		} {
			says(t, c, strings.Fields(words)...)
		}
		figure(t, "a client of the namespace with a partition: %s", under(t, g.UUID, c, "a", nil, "hold", "100").line(t))
	})
	t.Run("do programs pass the gate, under which number", func(t *testing.T) {
		_ = bare3(t, g.UUID) // or skip
		d := supervisedWith(t, g.UUID, mps.ProtocolV3)
		figure(t, "protocol %d (%s), %d multiprocessors", d.status.Protocol, d.status.ProtocolReason, d.status.Multiprocessors)
		v3 := mpsctl.V3{Control: d.control}
		group, path := controlGroup(t)
		if err := errors.Join(v3.Open(t.Context(), "tasks", "bundle", mpsctl.Limits{MemoryMiB: 2048, Percent: 25}), mpsctl.PlacesOf(d.status.ControlDir).Put("bundle", path)); err != nil {
			t.Fatal(err)
		}
		inside := startGrouped(t, g.UUID, d.status, group, "hold", "1000")
		figure(t, "a program in a namespace of 2 GiB: %s", inside.line(t))
		says(t, v3, "client", "list", "--server=tasks", "--format=csv,noheader")
		figure(t, "the program is process %d", inside.cmd.Process.Pid)
		figure(t, "a program of no task: %s", start(t, g.UUID, d.status, nil, "hold", "100").line(t))
		err := v3.End(t.Context(), inside.cmd.Process.Pid)
		figure(t, "client terminate: %v", err)
	})
	t.Run("may server.log be a link", func(t *testing.T) {
		_ = bare3(t, g.UUID) // or skip
		d := supervisedWith(t, g.UUID, mps.ProtocolV3)
		text, err := os.ReadFile(filepath.Join(d.status.LogDir, "server.log"))
		figure(t, "the log that the link leads to: %.400q, %v", text, err)
		there, err := filepath.Glob(filepath.Join(d.status.LogDir, "*", "*"))
		figure(t, "below the log directory: %v, %v", there, err)
	})
}

// controlGroup makes a control group, or skips.
func controlGroup(t *testing.T) (dir, path string) {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root = filepath.Join(root, "freezer")
	}
	path = fmt.Sprintf("/nomad-gpu-bundle-%d", os.Getpid())
	dir = filepath.Join(root, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no control group can be made: %v", err)
	}
	t.Cleanup(func() {
		for limit := time.Now().Add(10 * time.Second); os.Remove(dir) != nil && time.Now().Before(limit); {
			time.Sleep(10 * time.Millisecond)
		}
	})
	return dir, path
}

// startGrouped is start in a control group: the program waits there until it may begin.
func startGrouped(t *testing.T, uuid string, s mps.Status, group string, args ...string) *client {
	t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=" + uuid, "LD_LIBRARY_PATH=" + libraryPath(),
		"CUDA_MPS_PIPE_DIRECTORY=" + s.PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + s.LogDir}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inner := append([]string{executable, mps.ExecCommand, s.ShmDir, "/dev/shm", "--", executable, workCommand}, args...)
	argv := append([]string{"/bin/sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(group, "cgroup.procs")}, inner...)
	return launch(t, argv, env, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS})
}
