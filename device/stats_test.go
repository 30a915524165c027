// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// tenantRig runs one real process that has, in the simulation, memory of a slice.
func tenantRig(t *testing.T, config string) (*rig, string) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "mode = \"slice\"\nslice_memory = \"4GiB\"\n"+config)
	uuid := uuidOf(t, r.until("all is healthy", allHealthy), "slice/T4/0")
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	})
	lease := gpu.Lease{ID: "11111111-2222-3333-4444-555555555555.train", AllocID: "11111111-2222-3333-4444-555555555555",
		Namespace: "default", Job: "bert", Group: "g", Task: "train", Cgroup: "/task", Phase: gpu.PhaseRunning,
		Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{1, 2}, Share: gpu.Share{MemoryMiB: 8192}}}}
	pid := sleeper.Process.Pid
	r.service.meter.Cgroups = func(p int) []cgroup.Group {
		if p == pid {
			return []cgroup.Group{{Path: "/task"}}
		}
		return nil
	}
	if err := r.openState().WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	r.happen(uuid, func(c *sim.Condition) {
		c.TemperatureC, c.PowerWatts = 55, 41
		c.Processes = []sim.Process{{PID: uint32(pid), MemoryMiB: 3000, MPS: true, Percent: 40}}
	})
	waitMeasured(t, r, 3000)
	return r, uuid
}

// waitMeasured waits until the only task was measured to use so much, and compute.
func waitMeasured(t *testing.T, r *rig, mib int64) {
	t.Helper()
	for {
		if u, err := r.openState().Usage(); err == nil && len(u.Tasks) == 1 && u.Tasks[0].MemoryMiB == mib && u.Tasks[0].Milli == 400 {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("gave up waiting for a measurement")
		}
	}
}

func TestAnUnreadableLeaseLeavesOtherTasksMeasured(t *testing.T) {
	r, uuid := tenantRig(t, "")
	torn := filepath.Join(r.dir, "run", "leases", "torn.json")
	if err := os.WriteFile(torn, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.happen(uuid, func(c *sim.Condition) { c.Processes[0].MemoryMiB = 4000 })
	waitMeasured(t, r, 4000)
}

func TestStats(t *testing.T) {
	r, uuid := tenantRig(t, "")
	stream, err := r.Stats(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	groups := (<-stream).Groups
	if len(groups) != 2 || groups[0].Name != "T4/0" || len(groups[0].InstanceStats) != 3 || len(groups[1].InstanceStats) != 1 {
		t.Fatalf("groups are %+v", groups)
	}
	var b strings.Builder
	for n := range 3 {
		id := gpu.SliceID{UUID: uuid, N: n}
		s := groups[0].InstanceStats[id.String()]
		fmt.Fprintf(&b, "slice %d\n%s", n, statsText(s))
	}
	free := gpu.SliceID{UUID: uuidOf(t, r.groups(), "slice/T4/1"), N: 0}
	fmt.Fprintf(&b, "free GPU\n%s", statsText(groups[1].InstanceStats[free.String()]))
	golden.Compare(t, "stats.txt", b.String())
}

func statsText(s *device.DeviceStats) string {
	var lines []string
	for name, v := range s.Stats.Attributes {
		text := ""
		switch {
		case v.StringVal != nil:
			text = *v.StringVal
		case v.IntDenominatorVal != nil:
			text = fmt.Sprintf("%d / %d", *v.IntNumeratorVal, *v.IntDenominatorVal)
		default:
			text = fmt.Sprint(*v.IntNumeratorVal)
		}
		if v == s.Summary {
			text += " (summary)"
		}
		lines = append(lines, fmt.Sprintf("  %s = %s %s\n", name, text, v.Unit))
	}
	slices.Sort(lines)
	return strings.ReplaceAll(strings.Join(lines, ""), " \n", "\n")
}

// scrape reads the metrics as Prometheus does.
func scrape(t *testing.T, r *rig) string {
	t.Helper()
	response, err := http.Get("http://" + r.service.metricsAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestMetrics(t *testing.T) {
	r, uuid := tenantRig(t, "metrics { address = \"127.0.0.1:0\" }")
	other := uuidOf(t, r.groups(), "slice/T4/1")
	r.listen(other)
	r.happen(other, func(c *sim.Condition) { c.XIDs, c.ProbeFails = append(c.XIDs, 79), true })
	r.until("it is unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/1"); return n == 0 })
	text := scrape(t, r)
	host, _ := os.Hostname()
	text = strings.ReplaceAll(text, `hostname="`+host+`"`, `hostname="HOST"`)
	text = strings.ReplaceAll(strings.ReplaceAll(text, uuid, "GPU-A"), other, "GPU-B")
	text = regexp.MustCompile(`(?m)^(nomad_gpu_fault_since_seconds\{.*\}) .*$`).ReplaceAllString(text, "$1 TIME")
	golden.Compare(t, "metrics.txt", text)
}

// NVML's usual counters say nothing of a MIG instance: it is sampled.
func TestMIGInstancesTellHowBusyTheyAre(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig+"\nmetrics { address = \"127.0.0.1:0\" }")
	groups := r.until("all is healthy", allHealthy)
	g, _ := find(groups, "mig/3g.40gb")
	instance := g.Devices[0].ID
	s, err := r.openState().GPU(instance)
	if err != nil {
		t.Fatal(err)
	}
	r.happen(s.ParentUUID, func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: 4000000, MemoryMiB: 1000, Percent: 60, Instance: instance}}
	})
	stream, err := r.Stats(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for all := range stream {
		at := slices.IndexFunc(all.Groups, func(g *device.DeviceGroupStats) bool { return g.Name == "3g.40gb" })
		stats := all.Groups[at].InstanceStats[instance]
		use := stats.Stats.Attributes["GPU utilization"]
		if use == nil {
			continue // one sample tells nothing
		}
		if *use.IntNumeratorVal != 60 || *stats.Stats.Attributes["SM utilization"].IntNumeratorVal != 60 || *stats.Summary.IntNumeratorVal != 1000 {
			t.Errorf("statistics are\n%s", statsText(stats))
		}
		break
	}
	if text := scrape(t, r); !regexp.MustCompile(`(?m)^DCGM_FI_PROF_GR_ENGINE_ACTIVE\{.*GPU_I_PROFILE="3g\.40gb".*UUID="` + instance + `".*\} 0\.6$`).MatchString(text) {
		t.Errorf("metrics are\n%s", text)
	}
}
