// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
)

func TestFingerprint(t *testing.T) {
	all := map[string]inventory.Entry{}
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
	if err := cuda.Probe(self, cuda.Target{UUID: g.UUID, LibraryPath: libraryPath()}, time.Minute); err != nil {
		t.Error(err)
	}
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

// inLibrary is a GPU as NVML itself has it, without the plugin.
func inLibrary(t *testing.T, uuid string) nvml.Device {
	t.Helper()
	library := driver().Library()
	if ret := library.Init(); ret != nvml.SUCCESS {
		unavailable(t, "NVML cannot be asked: %v", ret)
	}
	t.Cleanup(func() { library.Shutdown() })
	d, ret := library.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return d
}

// What NVML says of a process's use of compute for a minute after its last kernel:
// samples stay in the driver's buffer, so idleness is told by their time stamps alone.
func TestUtilizationAfterAKernel(t *testing.T) {
	g := idle(t)
	d := inLibrary(t, g.UUID)
	ask := func(since uint64) (words string, newest uint64) {
		samples, ret := d.GetProcessUtilization(since)
		for _, s := range samples {
			newest = max(newest, s.TimeStamp)
			words += "; process " + strconv.Itoa(int(s.Pid)) + " " + strconv.Itoa(int(s.SmUtil)) + " %, " +
				time.Since(time.UnixMicro(int64(s.TimeStamp))).Round(100*time.Millisecond).String() + " old"
		}
		return ret.String() + words, newest
	}
	c := start(t, g.UUID, mps.Status{}, nil, "compute", "4").started(t)
	time.Sleep(3 * time.Second)
	_, last := ask(0)
	words, _ := ask(0)
	figure(t, "in a kernel of process %d: %s", c.cmd.Process.Pid, words)
	c.rate(t)
	idle := start(t, g.UUID, mps.Status{}, nil, "hold", "64")
	idle.held(t)
	ended := time.Now()
	for _, after := range []time.Duration{1, 2, 5, 10, 20, 40, 60} {
		time.Sleep(time.Until(ended.Add(after * time.Second)))
		all, _ := ask(0)
		since, newest := ask(last)
		figure(t, "%d s after it, with process %d idle: all samples: %s | since the last: %s", after, idle.cmd.Process.Pid, all, since)
		last = max(last, newest)
	}
}

// The checkpoint calls are asked about every process of a task, shells among them.
func TestTheStateOfAShell(t *testing.T) {
	shell := exec.Command("sleep", "60")
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shell.Process.Kill(); _ = shell.Wait() })
	g := idle(t)
	figure(t, "a program without CUDA: %s", start(t, g.UUID, mps.Status{}, nil, "state", strconv.Itoa(shell.Process.Pid)).outcome())
	c := start(t, g.UUID, mps.Status{}, nil, "hold", "64")
	c.held(t)
	figure(t, "a program with CUDA: %s", start(t, g.UUID, mps.Status{}, nil, "state", strconv.Itoa(c.cmd.Process.Pid)).outcome())
	figure(t, "a process that is not there: %s", start(t, g.UUID, mps.Status{}, nil, "state", "4194300").outcome())
}

// What NVML's less usual calls answer on this driver.
func TestCallsOfNVML(t *testing.T) {
	g := idle(t)
	d := inLibrary(t, g.UUID)
	temperature, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	figure(t, "GetTemperature: %d, %v", temperature, ret)
	newer, ret := d.GetTemperatureV().V1()
	figure(t, "GetTemperatureV: %+v, %v", newer, ret)
	ecc, ret := d.GetDetailedEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	figure(t, "GetDetailedEccErrors: %+v, %v", ecc, ret)
	numa, ret := d.GetNumaNodeId()
	figure(t, "GetNumaNodeId: %d, %v", numa, ret)
	pci, ret := d.GetPciInfo()
	figure(t, "GetPciInfo: domain %#x, bus ID %q, %v", pci.Domain, text(pci.BusId[:]), ret)
	graphics, ret := d.GetGraphicsRunningProcesses()
	figure(t, "GetGraphicsRunningProcesses: %+v, %v", graphics, ret)
	mode, pending, ret := d.GetMigMode()
	figure(t, "GetMigMode: %d, %d, %v", mode, pending, ret)
	v1, ret1 := d.GetMemoryInfo()
	v2, ret2 := d.GetMemoryInfo_v2()
	figure(t, "GetMemoryInfo: total %d used %d MiB, %v; v2: total %d reserved %d used %d MiB, %v", v1.Total>>20, v1.Used>>20, ret1, v2.Total>>20, v2.Reserved>>20, v2.Used>>20, ret2)
	for profile := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(profile)
		if ret != nvml.SUCCESS {
			figure(t, "profile %d: %v", profile, ret)
			continue
		}
		places, ret := d.GetGpuInstancePossiblePlacements(&info)
		figure(t, "profile %d: id %d, %d slices, %d instances, %d MiB, %d multiprocessors, placements %v, %v", profile, info.Id, info.SliceCount, info.InstanceCount, info.MemorySizeMB, info.MultiprocessorCount, places, ret)
	}
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
