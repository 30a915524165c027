// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The simulator answers as an H200 with driver 580.159.04 did, in MIG mode or not: the file
// has what e2e/gpu wrote down there.
func TestAnswersAreThoseOfARealGPU(t *testing.T) {
	topology, err := ParseTopology("t.hcl", []byte("machine \"m\" {}\ngpu {\n model = \"H200\"\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(topology, Options{Dir: t.TempDir(), BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	if ret := m.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	device, _ := m.DeviceGetHandleByIndex(0)
	want, err := os.ReadFile("testdata/h200.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	say := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
	_, ret := device.GetNumaNodeId()
	say("GetNumaNodeId: %s", words(ret))
	mode, pending, ret := device.GetMigMode()
	say("GetMigMode: %d, %d, %s", mode, pending, words(ret))
	old, ret := device.GetMemoryInfo()
	now, ret2 := device.GetMemoryInfo_v2()
	say("GetMemoryInfo: total %d used %d MiB, %s; v2: total %d reserved %d used %d MiB, %s", old.Total>>20, old.Used>>20, words(ret), now.Total>>20, now.Reserved>>20, now.Used>>20, words(ret2))
	for number := range 18 {
		profile, ret := device.GetGpuInstanceProfileInfo(number)
		if ret != nvml.SUCCESS {
			say("profile %d: %s", number, words(ret))
			continue
		}
		places, ret := device.GetGpuInstancePossiblePlacements(&profile)
		say("profile %d: id %d, %d slices, %d instances, %d MiB, %d multiprocessors, placements %v, %s",
			number, profile.Id, profile.SliceCount, profile.InstanceCount, profile.MemorySizeMB, profile.MultiprocessorCount, places, words(ret))
	}
	for n, line := range strings.Split(strings.TrimSpace(string(want)), "\n") {
		if n >= len(got) || got[n] != line {
			t.Errorf("got  %s\nwant %s", got[min(n, len(got)-1)], line)
		}
	}
}

// words are what NVML calls an answer.
func words(ret nvml.Return) string {
	switch ret {
	case nvml.SUCCESS:
		return "Success"
	case nvml.ERROR_NOT_SUPPORTED:
		return "Not Supported"
	case nvml.ERROR_INVALID_ARGUMENT:
		return "Invalid Argument"
	}
	return fmt.Sprint(ret)
}
