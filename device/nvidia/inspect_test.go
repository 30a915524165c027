// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"errors"
	"maps"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// everything is a backend whose library has every call.
func everything() *Backend {
	return &Backend{lib: sim.Unsupported(&mock.Interface{ExtensionsFunc: func() nvml.ExtendedInterface { return nil }})}
}

func pciAt(bus string) nvml.PciInfo {
	var info nvml.PciInfo
	for i := range len(bus) {
		info.BusId[i] = int8(bus[i])
	}
	return info
}

func TestPCIAddressesAreSpelledAsInSysfs(t *testing.T) {
	for bus, want := range map[string]string{
		"00000000:3B:00.0":          "0000:3b:00.0",
		"0000ABCD:01:1F.7":          "abcd:01:1f.7",
		"00010000:3B:00.0":          "10000:3b:00.0", // as behind Intel's VMD
		"0000:3B:00.0":              "0000:3b:00.0",
		"":                          "",
		"0123456789ABCDEF:01:00.00": "0123456789abcdef:01:00.00",
	} {
		if got := busID(pciAt(bus)); got != want {
			t.Errorf("%q is %q, want %q", bus, got, want)
		}
	}
}

func TestBandwidthOfPCIe(t *testing.T) {
	for _, tc := range []struct {
		generation, width int
		want              int64
	}{{1, 1, 250}, {2, 4, 2000}, {3, 16, 15760}, {4, 16, 31504}, {5, 16, 63008}, {6, 16, 121008}, {7, 16, 0}, {0, 16, 0}} {
		if got := pciBandwidth(tc.generation, tc.width); got != tc.want {
			t.Errorf("generation %d, %d lanes: %d MB/s, want %d", tc.generation, tc.width, got, tc.want)
		}
	}
}

// Links count by what is at their other end, if they are on and lead away.
func TestLinksByTheirOtherEnd(t *testing.T) {
	type end struct {
		off, fails, silent bool // silent: the type of the other end is not told
		kind               nvml.IntNvLinkDeviceType
		bus                string
	}
	const self = "0000:10:00.0"
	for name, tc := range map[string]struct {
		links    map[int]end
		switches int
		peers    map[string]int
	}{
		"none":               {nil, 0, nil},
		"all to switches":    {map[int]end{0: {kind: nvml.NVLINK_DEVICE_TYPE_SWITCH, bus: "0000:05:00.0"}, 17: {kind: nvml.NVLINK_DEVICE_TYPE_SWITCH}}, 2, nil},
		"two peers":          {map[int]end{0: {bus: "00000000:11:00.0"}, 1: {bus: "0000:11:00.0"}, 2: {bus: "0000:12:00.0"}}, 0, map[string]int{"0000:11:00.0": 2, "0000:12:00.0": 1}},
		"one is off":         {map[int]end{0: {off: true, bus: "0000:11:00.0"}, 1: {bus: "0000:11:00.0"}}, 0, map[string]int{"0000:11:00.0": 1}},
		"one cannot be read": {map[int]end{0: {fails: true, bus: "0000:11:00.0"}, 1: {bus: "0000:11:00.0"}}, 0, map[string]int{"0000:11:00.0": 1}},
		"a loop":             {map[int]end{0: {bus: self}}, 0, nil},
		"type not told":      {map[int]end{3: {silent: true, kind: nvml.NVLINK_DEVICE_TYPE_SWITCH, bus: "0000:11:00.0"}}, 0, map[string]int{"0000:11:00.0": 1}},
	} {
		d := sim.Unsupported(&mock.Device{
			GetNvLinkStateFunc: func(n int) (nvml.EnableState, nvml.Return) {
				l, there := tc.links[n]
				switch {
				case !there:
					return nvml.FEATURE_ENABLED, nvml.ERROR_INVALID_ARGUMENT
				case l.off:
					return nvml.FEATURE_DISABLED, nvml.SUCCESS
				}
				return nvml.FEATURE_ENABLED, nvml.SUCCESS
			},
			GetNvLinkRemoteDeviceTypeFunc: func(n int) (nvml.IntNvLinkDeviceType, nvml.Return) {
				if tc.links[n].silent {
					return tc.links[n].kind, nvml.ERROR_NOT_SUPPORTED
				}
				return tc.links[n].kind, nvml.SUCCESS
			},
			GetNvLinkRemotePciInfoFunc: func(n int) (nvml.PciInfo, nvml.Return) {
				if tc.links[n].fails {
					return pciAt(tc.links[n].bus), nvml.ERROR_UNKNOWN
				}
				return pciAt(tc.links[n].bus), nvml.SUCCESS
			},
		})
		if got := everything().nvlinks(d, self); got.Switches != tc.switches || !maps.Equal(got.Peers, tc.peers) {
			t.Errorf("%s: %d to switches, peers %v", name, got.Switches, got.Peers)
		}
	}
}

// What NVML says of a GPU's memory is its size; where the memory is the host's, the host
// says it, and where nothing is told it is a problem.
func TestMemoryOfAGPU(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		ret       nvml.Return
		v2        nvml.Return
		reserved  uint64
		host      int64
		wantMiB   int64
		wantKept  int64
		unified   bool
		wantFails nvml.Return
	}{
		"as told":               {nvml.SUCCESS, nvml.SUCCESS, 500 * mib, 0, 81559, 500, false, nvml.SUCCESS},
		"a part of a MiB":       {nvml.SUCCESS, nvml.SUCCESS, 500*mib + 1, 0, 81559, 501, false, nvml.SUCCESS},
		"reserve not told":      {nvml.SUCCESS, nvml.ERROR_UNKNOWN, 500 * mib, 0, 81559, 0, false, nvml.SUCCESS},
		"the host's":            {nvml.ERROR_NOT_SUPPORTED, nvml.SUCCESS, 500 * mib, 122502, 122502, 20825, true, nvml.SUCCESS},
		"the host's, small":     {nvml.ERROR_NOT_SUPPORTED, nvml.SUCCESS, 0, 16384, 16384, 4096, true, nvml.SUCCESS},
		"the host's, at 40 GiB": {nvml.ERROR_NOT_SUPPORTED, nvml.SUCCESS, 0, 40960, 40960, 6963, true, nvml.SUCCESS},
		"the host is silent":    {nvml.ERROR_NOT_SUPPORTED, nvml.SUCCESS, 0, -1, 0, 0, false, nvml.ERROR_NOT_SUPPORTED},
		"lost":                  {nvml.ERROR_GPU_IS_LOST, nvml.SUCCESS, 0, 122502, 0, 0, false, nvml.ERROR_GPU_IS_LOST},
	} {
		b := everything()
		b.hostMemory = func() (int64, error) {
			if tc.host < 0 {
				return 1, errors.New("no /proc")
			}
			return tc.host, nil
		}
		d := sim.Unsupported(&mock.Device{
			GetMemoryInfoFunc:    func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 81559*mib + mib - 1}, tc.ret },
			GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{Reserved: tc.reserved}, tc.v2 },
		})
		var g hardware.GPU
		if ret := b.memoryOf(d, &g); ret != tc.wantFails || g.MemoryMiB != tc.wantMiB || g.ReservedMiB != tc.wantKept || g.Unified != tc.unified {
			t.Errorf("%s: %d MiB, %d of them kept, unified %v, %s", name, g.MemoryMiB, g.ReservedMiB, g.Unified, describe(ret))
		}
	}
	if host, err := hostMemoryMiB(); err != nil || host < 64 || host > 1<<30 {
		t.Errorf("this machine has %d MiB, %v", host, err)
	}
}

// An old library is asked for nothing that it has not.
func TestReserveOfAnOldDriver(t *testing.T) {
	b := &Backend{lib: sim.Unsupported(&mock.Interface{ExtensionsFunc: func() nvml.ExtendedInterface { return noSymbols{} }})}
	if got := b.reservedMiB(nil); got != 0 {
		t.Errorf("%d MiB", got)
	}
	if got := b.fabric(nil); got != nil {
		t.Errorf("the fabric is %v", got)
	}
}

type noSymbols struct{}

func (noSymbols) LookupSymbol(name string) error { return errors.New("there is no " + name) }

// The profile is in NVML's name, else it follows from the sizes, rounded as nvidia-smi
// does.
func TestProfileOfAMIGInstance(t *testing.T) {
	const h100, a100 = 81559 << 20, 40960 << 20
	for _, tc := range []struct {
		name   string
		gi, ci uint32
		mib    uint64
		total  uint64
		want   string
	}{
		{"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 1, 9984, h100, "1g.10gb"},
		{"NVIDIA H100 80GB HBM3 MIG 1g.20gb+me", 9, 9, 9, h100, "1g.20gb+me"},
		{"NVIDIA H100 80GB HBM3", 1, 1, 9984, h100, "1g.10gb"},
		{"NVIDIA H100 80GB HBM3 MIG ", 3, 3, 40448, h100, "3g.40gb"},
		{"", 7, 7, 80896, h100, "7g.80gb"},
		{"", 3, 1, 40448, h100, "1c.3g.40gb"},
		{"", 3, 3, 20096, a100, "3g.20gb"},
		{"", 1, 1, 4864, a100, "1g.5gb"},
	} {
		a := nvml.DeviceAttributes{GpuInstanceSliceCount: tc.gi, ComputeInstanceSliceCount: tc.ci, MemorySizeMB: tc.mib}
		if got := profileName(tc.name, a, tc.total); got != tc.want {
			t.Errorf("%q, %d of %d slices, %d MiB: %s, want %s", tc.name, tc.ci, tc.gi, tc.mib, got, tc.want)
		}
	}
}

// MIG is turned on where it is off, and where that is not enough it is said.
func TestMIGIsTurnedOn(t *testing.T) {
	for name, tc := range map[string]struct {
		mode            int
		ret             nvml.Return
		set, activation nvml.Return
		wantSet         bool
		says            string
	}{
		"on already":          {nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, false, ""},
		"off":                 {nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS, nvml.SUCCESS, nvml.SUCCESS, true, ""},
		"no MIG":              {0, nvml.ERROR_NOT_SUPPORTED, nvml.SUCCESS, nvml.SUCCESS, false, "the GPU has no MIG"},
		"the mode is unknown": {0, nvml.ERROR_UNKNOWN, nvml.SUCCESS, nvml.SUCCESS, false, "read MIG mode: unknown error"},
		"refused":             {nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS, nvml.ERROR_NO_PERMISSION, nvml.SUCCESS, true, "enable MIG: no permission"},
		"it takes a reset":    {nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS, nvml.SUCCESS, nvml.ERROR_IN_USE, true, "enable MIG: the GPU is in use; reset the GPU or reboot the node"},
	} {
		set := false
		err := enableMIG(sim.Unsupported(&mock.Device{
			GetMigModeFunc: func() (int, int, nvml.Return) { return tc.mode, tc.mode, tc.ret },
			SetMigModeFunc: func(mode int) (nvml.Return, nvml.Return) {
				set = mode == nvml.DEVICE_MIG_ENABLE
				return tc.set, tc.activation
			},
		}))
		if (err == nil) != (tc.says == "") || err != nil && err.Error() != tc.says || set != tc.wantSet {
			t.Errorf("%s: %v, set %v", name, err, set)
		}
	}
}
