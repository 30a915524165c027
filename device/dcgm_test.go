// SPDX-License-Identifier: MPL-2.0

package device

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/telemetry"
)

// readsAlways gives every device the same reading.
type readsAlways struct {
	telemetry.Reader
	reading hardware.Reading
}

func (o readsAlways) Reading(string, string) (hardware.Reading, error) { return o.reading, nil }

// family is a metric with its samples.
type family struct {
	kind    string
	samples []sample
}

type sample struct {
	labels map[string]string
	value  float64
}

// gatherAs collects the metrics of a machine whose devices all read the same.
func (r *rig) gatherAs(reading hardware.Reading, dcgm bool) map[string]family {
	r.t.Helper()
	m := *r.service.monitor
	m.Observer = readsAlways{m.Observer, reading}
	registry := prometheus.NewRegistry()
	if err := registry.Register(telemetry.NewCollector(&m, "host", dcgm)); err != nil {
		r.t.Fatal(err)
	}
	gathered, err := registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	families := map[string]family{}
	for _, g := range gathered {
		f := family{kind: g.GetType().String()}
		for _, m := range g.Metric {
			s := sample{map[string]string{}, m.GetGauge().GetValue() + m.GetCounter().GetValue()}
			for _, l := range m.Label {
				s.labels[l.GetName()] = l.GetValue()
			}
			f.samples = append(f.samples, s)
		}
		families[g.GetName()] = f
	}
	return families
}

// everyReading differs in every value.
var everyReading = hardware.Reading{
	PowerWatts: 301, PowerLimitWatts: 302, GPUPercent: 3, MemoryPercent: 4, EncoderPercent: 5, DecoderPercent: 6, TemperatureC: 67,
	MemoryUsedMiB: 10503, MemoryTotalMiB: 81559, BAR1UsedMiB: 10, BAR1TotalMiB: 11, SMClockMHz: 1200, MemoryClockMHz: 1300, EnergyMilliJoules: 1400,
	ECCL1: 15, ECCL2: 16, ECCMemory: 17, MemoryTemperatureC: 88, MemoryReservedMiB: 503, PCIeReplays: 20, RowsCorrectable: 21, RowsUncorrectable: 22,
	RowRemapFailed: 1, ClockReasons: 24, NVLinkKiB: 25, VGPULicensed: 1,
	Activity: hardware.Activity{GraphicsMilli: 260, SMMilli: 270, TensorMilli: 280, DRAMMilli: 290, PCIeSentBytes: 3000, PCIeReceivedBytes: 3100},
}

// dcgmDefaults are the counters that dcgm-exporter serves unless it is told otherwise,
// with their types, and what they are of everyReading; the last four are further ones.
var dcgmDefaults = []struct {
	name, kind string
	value      float64
}{
	{"DCGM_FI_DEV_SM_CLOCK", "GAUGE", 1200},
	{"DCGM_FI_DEV_MEM_CLOCK", "GAUGE", 1300},
	{"DCGM_FI_DEV_MEMORY_TEMP", "GAUGE", 88},
	{"DCGM_FI_DEV_GPU_TEMP", "GAUGE", 67},
	{"DCGM_FI_DEV_POWER_USAGE", "GAUGE", 301},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "COUNTER", 1400},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "COUNTER", 20},
	{"DCGM_FI_DEV_GPU_UTIL", "GAUGE", 3},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "GAUGE", 4},
	{"DCGM_FI_DEV_ENC_UTIL", "GAUGE", 5},
	{"DCGM_FI_DEV_DEC_UTIL", "GAUGE", 6},
	{"DCGM_FI_DEV_XID_ERRORS", "GAUGE", 13},
	{"DCGM_FI_DEV_FB_FREE", "GAUGE", 71056},
	{"DCGM_FI_DEV_FB_USED", "GAUGE", 10000}, // without what the driver keeps
	{"DCGM_FI_DEV_FB_RESERVED", "GAUGE", 503},
	{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "COUNTER", 25},
	{"DCGM_FI_DEV_VGPU_LICENSE_STATUS", "GAUGE", 1},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "COUNTER", 22},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "COUNTER", 21},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", "GAUGE", 1},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "GAUGE", 0.26},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "GAUGE", 0.28},
	{"DCGM_FI_PROF_DRAM_ACTIVE", "GAUGE", 0.29},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", "GAUGE", 3000},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", "GAUGE", 3100},

	{"DCGM_FI_PROF_SM_ACTIVE", "GAUGE", 0.27},
	{"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "GAUGE", 24},
	{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "COUNTER", 17},
	{"DCGM_FI_DEV_FB_TOTAL", "GAUGE", 81559},
}

// A dashboard of dcgm-exporter finds each of its counters, with the same type, meaning
// and labels; what a device does not tell has no sample, and beside dcgm-exporter none
// of its names is served.
func TestEveryDefaultCounterOfDCGM(t *testing.T) {
	r := newRig(t)
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{Driver: "570.1"}); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/t4.hcl", "")
	uuid := r.until("all is healthy", allHealthy)[0].Devices[0].ID
	r.listen(uuid) // with XID 13
	told := r.gatherAs(everyReading, true)
	for _, want := range dcgmDefaults {
		f := told[want.name]
		if len(f.samples) != 2 || f.kind != want.kind {
			t.Errorf("%s has %d samples of type %q, want %s", want.name, len(f.samples), f.kind, want.kind)
		}
		for _, s := range f.samples {
			if s.labels["UUID"] == uuid && s.value != want.value {
				t.Errorf("%s is %v, want %v", want.name, s.value, want.value)
			}
			number := map[bool]string{true: "0", false: "1"}[s.labels["UUID"] == uuid]
			for name, text := range map[string]string{"gpu": number, "device": "nvidia" + number, "pci_bus_id": "0000:1" + number + ":00.0",
				"modelName": "Tesla T4", "hostname": "host", "DCGM_FI_DRIVER_VERSION": "570.1"} {
				if s.labels[name] != text {
					t.Errorf("%s has the label %s=%q, want %q", want.name, name, s.labels[name], text)
				}
			}
		}
	}
	silent := r.gatherAs(hardware.NoReading(), true)
	beside := r.gatherAs(everyReading, false)
	for _, want := range dcgmDefaults {
		if _, told := silent[want.name]; told && want.name != "DCGM_FI_DEV_XID_ERRORS" {
			t.Errorf("%s has a sample of a device that does not tell", want.name)
		}
	}
	for name := range beside {
		if strings.HasPrefix(name, "DCGM_") {
			t.Errorf("%s is served beside dcgm-exporter", name)
		}
	}
	if len(beside["nomad_gpu_healthy"].samples) != 2 {
		t.Error("beside dcgm-exporter nothing is served")
	}
}
