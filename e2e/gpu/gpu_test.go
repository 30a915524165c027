package gpu

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const self = "/proc/self/exe"

// look takes inventory, or skips on a machine without a GPU.
func look(t *testing.T) device.Inventory {
	t.Helper()
	inventory, err := device.TakeInventory("")
	if errors.Is(err, nvidia.ErrAbsent) {
		t.Skipf("this machine has no NVIDIA driver: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(inventory.Devices) == 0 {
		t.Skip("this machine has no NVIDIA GPU")
	}
	return inventory
}

// plain is the first GPU that is not cut by MIG.
func plain(t *testing.T) device.InventoryEntry {
	t.Helper()
	for _, g := range look(t).Devices {
		if g.Parent == "" && g.Mode != gpu.ModeMIG {
			return g
		}
	}
	t.Skip("every GPU of this machine is in MIG mode")
	return device.InventoryEntry{}
}

// idle is plain, and skips where other programs would change what is measured.
func idle(t *testing.T) device.InventoryEntry {
	t.Helper()
	g := plain(t)
	for _, row := range smi(t, "--query-compute-apps=pid,name", "-i", g.UUID) {
		t.Skipf("GPU %s is in use by %q; stop it, or run this on an idle GPU", g.UUID, row)
	}
	return g
}

// smi asks nvidia-smi, or skips where there is none.
func smi(t *testing.T, args ...string) [][]string {
	t.Helper()
	out, err := exec.Command("nvidia-smi", append(args, "--format=csv,noheader,nounits")...).Output()
	if err != nil {
		t.Skipf("nvidia-smi cannot be asked: %v: %s", err, out)
	}
	r := csv.NewReader(strings.NewReader(string(out)))
	r.TrimLeadingSpace = true
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatalf("nvidia-smi answers %q: %v", out, err)
	}
	return rows
}

func TestFingerprint(t *testing.T) {
	all := map[string]device.InventoryEntry{}
	for _, g := range look(t).Devices {
		all[g.UUID] = g
	}
	rows := smi(t, "--query-gpu=uuid,name,memory.total,pci.bus_id")
	if len(rows) == 0 {
		t.Fatal("nvidia-smi names no GPU")
	}
	for _, row := range rows {
		g, ok := all[row[0]]
		pci := strings.ToLower(row[3])
		if !ok || g.Model != row[1] || strconv.FormatInt(g.MemoryMiB, 10) != row[2] || !strings.HasSuffix(pci, g.PCIBusID) || g.PCIBusID == "" {
			t.Errorf("nvidia-smi says %q, the plugin %+v", row, g)
		}
	}
}

// What jobs can ask for is what nvidia-smi says. A field that this nvidia-smi or
// this GPU does not have is left out.
func TestAttributes(t *testing.T) {
	for field, attribute := range map[string]string{
		"driver_version": "driver_version", "compute_cap": "compute_capability", "persistence_mode": "persistence_mode",
		"enforced.power.limit": "power", "clocks.max.sm": "cores_clock", "clocks.max.memory": "memory_clock",
	} {
		t.Run(attribute, func(t *testing.T) {
			inventory := look(t)
			for _, row := range smi(t, "--query-gpu=name,"+field) {
				for _, g := range inventory.Groups {
					got, _, _ := strings.Cut(g.Attributes[attribute], " ")
					if g.Name == "nvidia/gpu/"+row[0] && got != "" && !same(got, row[1]) {
						t.Errorf("nvidia-smi says %q, the plugin %q", row, g.Attributes[attribute])
					}
				}
			}
		})
	}
}

// same compares words, and numbers up to the part after the point that the
// plugin leaves out.
func same(plugin, smi string) bool {
	a, err1 := strconv.ParseFloat(plugin, 64)
	b, err2 := strconv.ParseFloat(smi, 64)
	return plugin == smi || strings.Contains(smi, "N/A") || err1 == nil && err2 == nil && b-a >= 0 && b-a < 1
}

func TestProbe(t *testing.T) {
	g := plain(t)
	if err := cuda.Probe(self, cuda.Target{UUID: g.UUID}, time.Minute); err != nil {
		t.Error(err)
	}
}

// daemon starts an MPS control daemon for a GPU, ready with its limits.
func daemon(t *testing.T, uuid string) mps.Status {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("MPS with a /dev/shm of its own needs root")
	}
	program, err := exec.LookPath("nvidia-cuda-mps-control")
	if err != nil {
		t.Skipf("the driver's MPS is not installed: %v", err)
	}
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	changed := make(chan struct{}, 1)
	s, err := mps.New(mps.Options{Logger: hclog.NewNullLogger(), StateDir: dir, Program: program, Self: self, MultiUser: true, ShmMiB: 1024,
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Want(nil)
		s.Close()
	})
	s.Want([]mps.Spec{{UUID: uuid, MemoryMiB: 8192, Percent: 100, MaxClients: 48}})
	limit := time.After(time.Minute)
	for {
		status := s.Status(uuid)
		if status.Ready {
			return status
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("the MPS control daemon does not become ready: %s", status.Reason)
		}
	}
}

// client is a CUDA program under MPS, as a container would run it: with the
// daemon's shared memory as its own.
type client struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func start(t *testing.T, uuid string, s mps.Status, limits []string, args ...string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, executable, append([]string{mps.ExecCommand, s.ShmDir, executable, workCommand}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=" + uuid,
		"CUDA_MPS_PIPE_DIRECTORY=" + s.PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + s.LogDir, "CUDA_CACHE_DISABLE=1"}, limits...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &client{cmd, bufio.NewScanner(out)}
}

// line is the next line that the program prints.
func (c *client) line(t *testing.T) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Fatalf("the program ended early: %v", c.cmd.Wait())
	}
	return c.lines.Text()
}

func (c *client) rate(t *testing.T) float64 {
	t.Helper()
	var rate float64
	if line := c.line(t); !scan(line, "rate %f", &rate) {
		t.Fatalf("the program says %q", line)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return rate
}

func scan(line, format string, target any) bool {
	n, err := fmt.Sscanf(line, format, target)
	return n == 1 && err == nil
}

func TestShares(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	small := start(t, g.UUID, s, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"}, "compute", "8")
	large := start(t, g.UUID, s, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60"}, "compute", "8")
	for _, c := range []*client{small, large} {
		if line := c.line(t); line != "started" {
			t.Fatalf("the program says %q", line)
		}
	}
	a, b := small.rate(t), large.rate(t)
	t.Logf("30%% computes %.1f launches per second, 60%% %.1f: ratio %.2f", a, b, b/a)
	if ratio := b / a; ratio < 1.6 || ratio > 2.4 {
		t.Errorf("the ratio is %.2f, from 1.6 to 2.4 is right", ratio)
	}
}

func TestMemoryLimit(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	// Long enough for two other programs: the first context takes seconds on a
	// large machine.
	neighbour := start(t, g.UUID, s, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M"}, "compute", "30")
	if line := neighbour.line(t); line != "started" {
		t.Fatalf("the neighbour says %q", line)
	}
	limit := []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M"}
	if line := start(t, g.UUID, s, limit, "allocate", "512").line(t); line != "allocated" {
		t.Errorf("within the limit: %q", line)
	}
	if line := start(t, g.UUID, s, limit, "allocate", "3072").line(t); line != "out of memory" {
		t.Errorf("above the limit: %q", line)
	}
	if rate := neighbour.rate(t); rate <= 0 {
		t.Errorf("the neighbour computed %.1f launches per second", rate)
	}
}
