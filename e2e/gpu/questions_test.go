package gpu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
)

// The tests of this file print what NVIDIA's documents leave open, each as lines that
// begin with "figure:". They fail only where the product relies on the answer.

func limitTo(mib int) []string {
	return []string{fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", mib)}
}

// inNVML is what NVML says of a process on the GPU.
func inNVML(t *testing.T, uuid string, pid int) (hardware.Process, bool) {
	t.Helper()
	p, found, err := process(uuid, pid)
	if err != nil {
		unavailable(t, "NVML cannot be asked: %v", err)
	}
	return p, found
}

// shown is the same in words, for a figure beside others.
func shown(uuid string, pid int) string {
	p, found, err := process(uuid, pid)
	switch {
	case err != nil:
		return err.Error()
	case !found:
		return "the process is not there"
	}
	return fmt.Sprintf("the process has %d MiB, as an MPS client: %v, not told: %v", p.MemoryMiB, p.MPS, p.MPSUnknown)
}

func process(uuid string, pid int) (hardware.Process, bool, error) {
	b := nvidia.New(driver().Library(), 10*time.Second)
	defer b.Close()
	if _, err := b.Survey(); err != nil {
		return hardware.Process{}, false, err
	}
	all, err := b.Processes(uuid, uuid)
	at := slices.IndexFunc(all, func(p hardware.Process) bool { return p.PID == pid })
	if err != nil || at < 0 {
		return hardware.Process{}, false, err
	}
	return all[at], true, nil
}

// How much more than its limit NVML shows of a client that has all it can get: the
// watchdog's tolerance must be above that.
func TestNVMLsViewOfAClientAtItsLimit(t *testing.T) {
	g := idle(t)
	c := start(t, g.UUID, daemon(t, g.UUID), limitTo(2048), "hold", "8192")
	holds, free, total := c.held(t)
	figure(t, "a client limited to 2048 MiB gets %d MiB, and sees %d MiB free of %d", holds, free, total)
	if holds > 2048 {
		t.Errorf("it holds %d MiB", holds)
	}
	p, found := inNVML(t, g.UUID, c.cmd.Process.Pid)
	if !found {
		t.Fatal("NVML does not show it")
	}
	figure(t, "NVML shows %d MiB, as an MPS client: %v, not told: %v", p.MemoryMiB, p.MPS, p.MPSUnknown)
}

func TestAClientWithoutItsEnvironment(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID) // whose own limit is 8192 MiB
	t.Run("without limits", func(t *testing.T) {
		holds, _, _ := start(t, g.UUID, s, nil, "hold", "16384").held(t)
		figure(t, "a client that sets no limit gets %d MiB of the daemon's 8192", holds)
		if holds > 8192 {
			t.Errorf("the daemon's own limit does not hold: %d MiB", holds)
		}
	})
	t.Run("with a larger limit", func(t *testing.T) {
		holds, _, _ := start(t, g.UUID, s, limitTo(16384), "hold", "16384").held(t)
		figure(t, "a client that sets 16384 MiB gets %d MiB of the daemon's 8192", holds)
		if holds > 8192 {
			t.Errorf("a client lifts the daemon's limit: %d MiB", holds)
		}
	})
	t.Run("without the pipe directory", func(t *testing.T) {
		c := start(t, g.UUID, mps.Status{}, nil, "hold", "1024")
		holds, _, _ := c.held(t)
		p, found := inNVML(t, g.UUID, c.cmd.Process.Pid)
		figure(t, "beside MPS a program gets %d MiB; NVML shows it: %v, as an MPS client: %v, not told: %v", holds, found, p.MPS, p.MPSUnknown)
		if found && p.MPS {
			t.Error("NVML takes it for a client: what is beside MPS cannot be found")
		}
	})
}

func TestLimitsAfterAChange(t *testing.T) {
	g := idle(t)
	d := supervised(t, g.UUID)
	before := start(t, g.UUID, d.status, nil, "hold", "2048")
	before.held(t)
	d.limit(t, g.UUID, 4096)
	holds, _, _ := start(t, g.UUID, d.status, nil, "hold", "8192").held(t)
	figure(t, "after the daemon's limit went from 8192 to 4096 MiB, a new client gets %d MiB, while one from before runs", holds)
	if holds > 4096 {
		t.Errorf("the new limit does not hold: %d MiB", holds)
	}
	if _, err := fmt.Fprintln(before.in); err != nil {
		t.Fatal(err)
	}
	figure(t, "the memory of the client from before is %s", before.line(t))
}

// What ends one client, and what it does to the one beside it.
func TestTheEndOfAClientInAKernel(t *testing.T) {
	g := idle(t)
	for _, how := range []string{"SIGKILL", "terminate_client and SIGKILL", "a misaligned address", "an illegal address"} {
		t.Run(how, func(t *testing.T) {
			d := supervised(t, g.UUID)
			xids := watchXIDs(t, g.UUID)
			neighbor := start(t, g.UUID, d.status, limitTo(2048), "compute", "8").started(t)
			began := time.Now()
			switch how {
			case "a misaligned address":
				figure(t, "the culprit: %s", start(t, g.UUID, d.status, limitTo(1024), "fault", "1").started(t).outcome())
			case "an illegal address":
				figure(t, "the culprit: %s", start(t, g.UUID, d.status, limitTo(1024), "fault", "256").started(t).outcome())
			default:
				end(t, d, start(t, g.UUID, d.status, limitTo(1024), "spin", "0").started(t), strings.HasPrefix(how, "terminate"))
			}
			figure(t, "it ended within %s", time.Since(began).Round(time.Millisecond))
			outcome := neighbor.outcome()
			figure(t, "its neighbor: %s", outcome)
			if strings.HasPrefix(how, "terminate") && !strings.Contains(outcome, "rate ") {
				t.Error("the way in which the driver ends tasks harms their neighbors")
			}
			status := d.Status(g.UUID)
			figure(t, "the server is %s; %s", status.Server, status.Reason)
			figure(t, "XIDs: %v", xids())
		})
	}
}

// end kills a client in a kernel, after its work was terminated where that is wanted.
func end(t *testing.T, d *supervisedDaemon, c *client, terminate bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	servers, err := d.control.Servers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		clients, err := d.control.Clients(ctx, server)
		figure(t, "the clients of server %d are %v, %v; this one is process %d", server, clients, err, c.cmd.Process.Pid)
		if terminate && slices.Contains(clients, c.cmd.Process.Pid) {
			figure(t, "terminate_client answers %v", d.control.Terminate(ctx, server, c.cmd.Process.Pid))
		}
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	figure(t, "the culprit: %s", c.outcome())
}

// watchXIDs gathers the GPU's XIDs until it is asked for them, a second after the last.
func watchXIDs(t *testing.T, uuid string) func() []uint64 {
	t.Helper()
	b := nvidia.New(driver().Library(), 10*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	heard, ended := make(chan uint64, 64), make(chan error, 1)
	go func() {
		ended <- b.Watch(ctx, []string{uuid}, func(e hardware.Event) { heard <- e.XID })
	}()
	t.Cleanup(func() { cancel(); b.Close() })
	return func() []uint64 {
		var all []uint64
		for {
			select {
			case xid := <-heard:
				all = append(all, xid)
			case err := <-ended:
				t.Logf("events are not told: %v", err)
				return all
			case <-time.After(time.Second):
				return all
			}
		}
	}
}

func TestAClientOfAnotherUser(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	if _, err := os.Stat("/usr/bin/setpriv"); err != nil {
		unavailable(t, "%v", err)
	}
	start(t, g.UUID, s, limitTo(1024), "hold", "64").held(t)
	other := startAs(t, g.UUID, s, &syscall.Credential{Uid: 65534, Gid: 65534}, limitTo(1024), "hold", "64")
	said := make(chan string, 1)
	go func() {
		if other.lines.Scan() {
			said <- other.lines.Text()
		}
		close(said)
	}()
	select {
	case line := <-said:
		figure(t, "beside a client of root, one of user 65534 says %q", line)
	case <-time.After(20 * time.Second):
		figure(t, "beside a client of root, one of user 65534 waits")
		if s.MultiUser {
			t.Error("the plugin says that this server takes clients of every user")
		}
	}
}

// A task of the containerd driver has a pipe directory of its own, with the socket for
// clients alone.
func TestAClientWithOneSocketOnly(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	own := t.TempDir()
	if err := os.Chmod(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.PipeDir, "control"), filepath.Join(own, "control")); err != nil {
		t.Fatal(err)
	}
	s.PipeDir = own
	c := start(t, g.UUID, s, limitTo(1024), "hold", "2048")
	holds, _, _ := c.held(t)
	figure(t, "with the socket control alone a client gets %d MiB of 1024", holds)
	if holds > 1024 {
		t.Errorf("it holds %d MiB", holds)
	}
	figure(t, "NVML: %s", shown(g.UUID, c.cmd.Process.Pid))
}

func TestOverheads(t *testing.T) {
	g := idle(t)
	alone := start(t, g.UUID, mps.Status{}, nil, "compute", "3").started(t).rate(t)
	figure(t, "without MPS: %.2f launches a second", alone)
	s := daemon(t, g.UUID)
	for _, percent := range []int{100, 10, 1} {
		rate := start(t, g.UUID, s, []string{fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percent)}, "compute", "3").started(t).rate(t)
		figure(t, "under MPS with %d %%: %.2f launches a second, %.3f of it", percent, rate, rate/alone)
	}
}

// The plugin counts on so many clients, and closes the device to the next.
func TestTheClientBeyondTheLast(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	for n := 1; n <= 64; n++ {
		c := start(t, g.UUID, s, limitTo(256), "hold", "64")
		if !c.lines.Scan() || !strings.HasPrefix(c.lines.Text(), "holds 64 ") {
			figure(t, "client %d of the server: %q, %s", n, c.lines.Text(), c.outcome())
			return
		}
	}
	figure(t, "a server takes 64 clients and more")
}

func TestProbeOnAFullGPU(t *testing.T) {
	g := idle(t)
	holds, free, total := start(t, g.UUID, mps.Status{}, nil, "hold", "1048576").held(t)
	figure(t, "a program holds %d MiB, and %d of %d are free", holds, free, total)
	if err := cuda.Probe(self, cuda.Target{UUID: g.UUID, LibraryPath: libraryPath()}, time.Minute); err != nil {
		t.Errorf("a full GPU is taken for one that does not work: %v", err)
	}
}

// GPM's figures, against a program that keeps the GPU busy.
func TestGPMAgainstAKnownLoad(t *testing.T) {
	g := idle(t)
	b := nvidia.New(driver().Library(), 10*time.Second)
	t.Cleanup(b.Close)
	if _, err := b.Survey(); err != nil {
		unavailable(t, "NVML cannot be asked: %v", err)
	}
	start(t, g.UUID, mps.Status{}, nil, "compute", "20").started(t)
	var last hardware.Reading
	for range 4 { // each reading tells of the time since the one before
		reading, err := b.Reading(g.UUID, g.UUID)
		if err != nil {
			t.Fatal(err)
		}
		last = reading
		time.Sleep(time.Second)
	}
	figure(t, "busy: NVML %d %%, GPM graphics %d, SM %d, tensor %d, DRAM %d in thousandths", last.GPUPercent, last.GraphicsMilli, last.SMMilli, last.TensorMilli, last.DRAMMilli)
	if last.SMMilli == hardware.Absent {
		unavailable(t, "this GPU or its driver has no GPM")
	}
	if last.SMMilli < 500 {
		t.Errorf("a kernel that fills the GPU uses %d of 1000 of it", last.SMMilli)
	}
}

// A process goes out of the GPU and comes back with its memory: what suspending a
// task takes.
func TestCheckpointAndRestore(t *testing.T) {
	g := idle(t)
	for _, gib := range []int{1, 8, 40} {
		t.Run(fmt.Sprintf("%d GiB", gib), func(t *testing.T) {
			c := start(t, g.UUID, mps.Status{}, nil, "hold", fmt.Sprint(gib*1024))
			holds, _, _ := c.held(t)
			if holds < gib*1024 {
				unavailable(t, "the GPU has room for %d MiB", holds)
			}
			for _, step := range []string{"lock", "checkpoint", "restore", "unlock"} {
				began := time.Now()
				if said := start(t, g.UUID, mps.Status{}, nil, step, fmt.Sprint(c.cmd.Process.Pid)).outcome(); said != "it ends well" {
					unavailable(t, "%s: %s", step, said)
				}
				took := time.Since(began)
				figure(t, "%s of %d GiB takes %s, %.2f GiB/s", step, gib, took.Round(time.Millisecond), float64(gib)/took.Seconds())
				if step == "checkpoint" {
					figure(t, "meanwhile, NVML: %s", shown(g.UUID, c.cmd.Process.Pid))
				}
			}
			if _, err := fmt.Fprintln(c.in); err != nil {
				t.Fatal(err)
			}
			if said := c.line(t); said != "intact" {
				t.Errorf("its memory is %s", said)
			}
		})
	}
}

// The spec that the plugin makes of this driver, with the bundle as its hook.
func TestCDISpec(t *testing.T) {
	g := plain(t)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := nvidia.New(driver().Library(), 10*time.Second)
	t.Cleanup(b.Close)
	if _, err := b.Survey(); err != nil {
		unavailable(t, "NVML cannot be asked: %v", err)
	}
	cdi := nvidia.CDI{Library: driver().Library(), Driver: driver(), Log: hclog.NewNullLogger(), Hook: executable}
	spec, failed, err := cdi.CDISpec("nomad-gpu/nvidia", []string{g.UUID})
	if err != nil || len(failed) > 0 {
		t.Fatal(err, failed)
	}
	if err := cdi.CheckCDI(spec, []string{g.UUID}); err != nil {
		t.Errorf("the spec is broken: %v", err)
	}
	figure(t, "the spec has %d device nodes, %d mounts and %d hooks", len(spec.ContainerEdits.DeviceNodes), len(spec.ContainerEdits.Mounts), len(spec.ContainerEdits.Hooks))
	for _, h := range spec.ContainerEdits.Hooks {
		cmd := exec.Cmd{Path: h.Path, Args: []string{h.Args[0], h.Args[1], "--help"}, Env: h.Env}
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "Unsupported") {
			t.Errorf("the hook %q is not known: %v: %s", h.Args, err, out)
		}
	}
}
