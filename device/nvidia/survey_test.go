// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// calls are all that the backend asks of a device, by the simulator's names.
var calls = []string{
	"GetUUID", "GetName", "GetPciInfo", "GetMemoryInfo", "GetMinorNumber", "GetBAR1MemoryInfo", "GetEnforcedPowerLimit",
	"GetMaxClockInfo", "GetMaxPcieLinkGeneration", "GetMaxPcieLinkWidth", "GetDisplayMode", "GetPersistenceMode",
	"GetCudaComputeCapability", "GetVirtualizationMode", "GetComputeMode", "GetMigMode", "GetMaxMigDeviceCount",
	"GetMigDeviceHandleByIndex", "GetAttributes", "GetGpuInstanceId", "GetComputeInstanceId", "GetFieldValues",
	"GetRemappedRows", "GetTotalEccErrors", "GetNvLinkState", "GetNvLinkRemoteDeviceType", "GetNvLinkRemotePciInfo", "GetGpuFabricInfo", "GetMemoryInfo_v2", "GetPowerUsage", "GetTemperature", "GetUtilizationRates",
	"GetEncoderUtilization", "GetDecoderUtilization", "GetClockInfo", "GetDetailedEccErrors", "GetPcieReplayCounter", "GetGridLicensableFeatures", "GetCurrentClocksEventReasons", "GetComputeRunningProcesses",
	"GetMPSComputeRunningProcesses", "GetGraphicsRunningProcesses", "GetProcessUtilization", "RegisterEvents",
	"GetSupportedEventTypes", "GpmQueryDeviceSupport", "GpmSampleGet", "GpmMigSampleGet", "GpmMetricsGet",
	"DeviceGetHandleByIndex",
}

// returns are NVML's codes for failures.
func returns() []int {
	all := []int{999}
	for code := 1; code <= int(nvml.ERROR_INVALID_STATE)+1; code++ {
		all = append(all, code)
	}
	return all
}

func TestSurveyOfMockMachines(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server *server.Server
		model  string
		mib    int64
		cc     string
	}{
		{"A100", dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", 40960, "8.0"},
		{"H100", dgxh100.New(), "NVIDIA H100 80GB HBM3", 81920, "9.0"},
		{"H200", dgxh200.New(), "NVIDIA H200 141GB HBM3e", 144384, "9.0"},
		{"B200", dgxb200.New(), "NVIDIA B200 180GB HBM3e", 184320, "10.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sim.Unsupported(&tc.server.Interface)
			for _, d := range tc.server.Devices {
				sim.Unsupported(&d.(*server.Device).Device)
			}
			b := nvidia.New(tc.server, forever)
			defer b.Close()
			m, err := b.Survey()
			if err != nil || len(m.GPUs) != 8 || len(m.Drivers[nvidia.Vendor].Unknown) != 0 {
				t.Fatalf("got %d GPUs, %v, %v", len(m.GPUs), m.Drivers[nvidia.Vendor].Unknown, err)
			}
			for i, g := range m.GPUs {
				if g.Model != tc.model || g.MemoryMiB != tc.mib || g.ComputeCapability != tc.cc || g.Index != i || len(g.Problems) != 0 {
					t.Errorf("GPU %d is %+v", i, g)
				}
			}
		})
	}
}

func TestSurveyReadsTraits(t *testing.T) {
	r := newRig(t, `
gpu {
	model = "H100"
	count = 2
	numa  = 1
}`)
	m, err := r.Survey()
	if err != nil {
		t.Fatal(err)
	}
	want := hardware.GPU{UUID: r.uuid(0), Vendor: "nvidia", Type: "gpu", PCIBusID: "0000:10:00.0", Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ReservedMiB: 459,
		Traits: hardware.Traits{BAR1MiB: 131072, PowerLimitWatts: 700, CoreClockMHz: 1980, MemoryClockMHz: 2619, PCIBandwidthMBps: 63008,
			DisplayState: "Disabled", PersistenceMode: "Enabled", ComputeCapability: "9.0", NUMANode: 1, Links: hardware.Links{Peers: map[string]int{"0000:11:00.0": 18}}}}
	if diff := cmp.Diff(want, m.GPUs[0]); diff != "" {
		t.Errorf("GPU differs (-want +got):\n%s", diff)
	}
	if m.Drivers[nvidia.Vendor].Version != "580.95.05" || m.Drivers[nvidia.Vendor].Platform != "13.0" {
		t.Errorf("versions are %q and %q", m.Drivers[nvidia.Vendor].Version, m.Drivers[nvidia.Vendor].Platform)
	}
}

func TestSurveyReadsMIG(t *testing.T) {
	r := newRig(t, `
gpu {
	model = "H100"
	mig   = ["3g.40gb", "1g.10gb"]
}`)
	m, err := r.Survey()
	if err != nil {
		t.Fatal(err)
	}
	g := m.GPUs[0]
	if !g.Partitioned || len(g.Partitions) != 2 {
		t.Fatalf("GPU is %+v", g)
	}
	for i, want := range []string{"3g.40gb", "1g.10gb"} {
		if got := g.Partitions[i]; got.Profile != want || got.Name != "NVIDIA H100 80GB HBM3 MIG "+want || got.GI != i+1 {
			t.Errorf("instance %d is %+v", i, got)
		}
	}
}

// Whatever a call returns, for whichever GPU, the others are reported in full
// and that one is not taken for healthy if it cannot be used.
func TestSurveySurvivesEveryFailure(t *testing.T) {
	r := newRig(t, h100x3)
	essential := []string{"GetUUID", "GetName", "GetPciInfo", "GetMemoryInfo", "DeviceGetHandleByIndex"}
	for _, call := range calls {
		for _, code := range returns() {
			r.happen(1, func(c *sim.Condition) { c.Errors = map[string]int{call: code} })
			m, err := r.Survey()
			if err != nil {
				t.Fatalf("%s returns %d: %v", call, code, err)
			}
			seen := map[string]hardware.GPU{}
			for _, g := range m.GPUs {
				seen[g.UUID] = g
			}
			for _, other := range []int{0, 2} {
				if g := seen[r.uuid(other)]; g.Model == "" || len(g.Problems) > 0 {
					t.Errorf("%s returns %d for GPU 1: GPU %d is %+v", call, code, other, g)
				}
			}
			g, here := seen[r.uuid(1)]
			if bad := !here || len(g.Problems) > 0; bad != slices.Contains(essential, call) {
				t.Errorf("%s returns %d: GPU 1 is there: %v, problems %v", call, code, here, g.Problems)
			}
			if !here && len(m.Drivers[nvidia.Vendor].Unknown) != 1 {
				t.Errorf("%s returns %d: unknown devices are %v", call, code, m.Drivers[nvidia.Vendor].Unknown)
			}
		}
	}
}

func TestReadingAndProcessesSurviveEveryFailure(t *testing.T) {
	r := newRig(t, h100x3)
	r.happen(0, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 1, MemoryMiB: 10, MPS: true}} })
	for _, call := range calls {
		for _, code := range returns() {
			r.happen(0, func(c *sim.Condition) { c.Errors = map[string]int{call: code} })
			if _, err := r.Reading(r.uuid(0), r.uuid(0)); err != nil {
				t.Errorf("%s returns %d: reading: %v", call, code, err)
			}
			untold := code == int(nvml.ERROR_NOT_SUPPORTED) || code == int(nvml.ERROR_FUNCTION_NOT_FOUND)
			fails := call == "GetComputeRunningProcesses" || call == "GetMPSComputeRunningProcesses" && !untold
			processes, err := r.Processes(r.uuid(0), r.uuid(0))
			if (err != nil) != fails {
				t.Errorf("%s returns %d: processes: %v", call, code, err)
			}
			// Whatever happens, a client is not taken for a program beside MPS.
			for _, p := range processes {
				if !p.MPS && !p.MPSUnknown {
					t.Errorf("%s returns %d: the client is %+v", call, code, p)
				}
			}
		}
	}
}

func TestHangingCallIsAbandoned(t *testing.T) {
	for _, call := range []string{"GetUUID", "GetMemoryInfo", "GetNvLinkState", "*"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, h100x3)
			r.impatient()
			if _, err := r.Survey(); err != nil {
				t.Fatal(err)
			}
			r.happen(1, func(c *sim.Condition) { c.Hang = []string{call} })
			m, err := r.Survey() // comes back, though the call does not
			if err != nil {
				t.Fatal(err)
			}
			healthy := 0
			for _, g := range m.GPUs {
				if len(g.Problems) == 0 {
					healthy++
				} else if g.Problems[0].Code != "nvml-timeout" {
					t.Errorf("problem is %v", g.Problems)
				}
			}
			if healthy != 2 {
				t.Errorf("%d GPUs are healthy", healthy)
			}
			r.happen(1, func(c *sim.Condition) { c.Hang = nil })
			waitFor(t, "the GPU is healthy again", func() bool {
				m, err := r.Survey()
				return err == nil && len(m.GPUs) == 3 && !slices.ContainsFunc(m.GPUs, func(g hardware.GPU) bool { return len(g.Problems) > 0 })
			})
		})
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

func TestHealthProblems(t *testing.T) {
	for _, tc := range []struct {
		name   string
		model  string
		change func(*sim.Condition)
		want   string
	}{
		{"well", "H100", func(*sim.Condition) {}, ""},
		{"lost", "H100", func(c *sim.Condition) { c.Lost = true }, "gpu-lost"},
		{"reset required", "H100", func(c *sim.Condition) { c.Errors = map[string]int{"GetMemoryInfo": int(nvml.ERROR_RESET_REQUIRED)} }, "reset-required"},
		{"recovery action", "H100", func(c *sim.Condition) { c.RecoveryAction = 1 }, "recovery-gpu-reset"},
		{"unknown recovery action", "H100", func(c *sim.Condition) { c.RecoveryAction = 99 }, "recovery-unknown"},
		{"remap pending", "A100-80GB", func(c *sim.Condition) { c.RemapPending = true }, "ecc-remap-pending"},
		{"remap failed", "A100-80GB", func(c *sim.Condition) { c.RemapPending, c.RemapFailed = true, true }, "ecc-remap-failed"},
		{"uncorrected, with remapping", "A100-80GB", func(c *sim.Condition) { c.ECCUncorrected = 3 }, ""},
		{"uncorrected, without", "V100", func(c *sim.Condition) { c.ECCUncorrected = 3 }, "ecc-uncorrected"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, "gpu {\n model = \""+tc.model+"\"\n}")
			r.happen(0, tc.change)
			m, err := r.Survey()
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if p := m.GPUs[0].Problems; len(p) > 0 {
				got = p[0].Code
				if p[0].Message == "" || p[0].Action == "" {
					t.Errorf("problem does not help: %+v", p[0])
				}
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnpluggedAndRenumbered(t *testing.T) {
	r := newRig(t, h100x3)
	r.happen(1, func(c *sim.Condition) { c.Missing = true })
	if m, err := r.Survey(); err != nil || len(m.GPUs) != 2 {
		t.Errorf("got %d GPUs, %v", len(m.GPUs), err)
	}
	r.happen(1, func(c *sim.Condition) { c.Missing = false })
	c, err := sim.ReadControl(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Order = []string{r.uuid(2), r.uuid(0)}
	if err := sim.WriteControl(r.dir, c); err != nil {
		t.Fatal(err)
	}
	m, err := r.Survey()
	if err != nil || len(m.GPUs) != 3 || m.GPUs[0].UUID != r.uuid(2) || m.GPUs[0].Index != 0 {
		t.Errorf("got %+v, %v", m.GPUs, err)
	}
}

func TestDriverComesAndGoes(t *testing.T) {
	r := newRig(t, h100x3)
	if err := sim.WriteControl(r.dir, sim.Control{NoNVML: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Survey(); !errors.Is(err, nvidia.ErrAbsent) {
		t.Errorf("without NVML: %v", err)
	}
	if err := sim.WriteControl(r.dir, sim.Control{}); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Survey(); err != nil || len(m.GPUs) != 3 {
		t.Errorf("with NVML: %v, %v", m, err)
	}
	// The driver is unloaded under the running plugin, and loaded again.
	if err := sim.WriteControl(r.dir, sim.Control{NoNVML: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Survey(); !errors.Is(err, nvidia.ErrAbsent) {
		t.Errorf("driver unloaded: %v", err)
	}
	if err := sim.WriteControl(r.dir, sim.Control{}); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Survey(); err != nil || len(m.GPUs) != 3 {
		t.Errorf("driver loaded again: %v, %v", m, err)
	}
}
