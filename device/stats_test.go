package device

import (
	"flag"
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

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

var update = flag.Bool("update", false, "write golden files anew")

// golden compares with a file under testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); run with -update if that is right:\n%s", name, diff)
	}
}

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
	r.service.engine.meter.cgroups = func(p int) []string {
		if p == pid {
			return []string{"0::/task"}
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
	for {
		if u, err := r.openState().Usage(); err == nil && len(u.Tasks) == 1 && u.Tasks[0].MemoryMiB == 3000 {
			return r, uuid
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("gave up waiting for a measurement")
		}
	}
}

func TestStats(t *testing.T) {
	r, uuid := tenantRig(t, "")
	stream, err := r.Stats(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	groups := (<-stream).Groups
	if len(groups) != 2 || groups[0].Name != "T4/0" || len(groups[0].InstanceStats) != 3 {
		t.Fatalf("groups are %+v", groups)
	}
	var b strings.Builder
	for n := range 3 {
		id := gpu.SliceID{UUID: uuid, N: n}
		s := groups[0].InstanceStats[id.String()]
		fmt.Fprintf(&b, "slice %d\n%s", n, statsText(s))
	}
	golden(t, "stats.txt", b.String())
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

func TestMetrics(t *testing.T) {
	r, uuid := tenantRig(t, "metrics { address = \"127.0.0.1:0\" }")
	other := uuidOf(t, r.groups(), "slice/T4/1")
	r.happen(other, func(c *sim.Condition) { c.XIDs, c.ProbeFails = append(c.XIDs, 79), true })
	r.until("it is unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/1"); return n == 0 })
	response, err := http.Get("http://" + r.service.engine.metricsAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := string(body)
	host, _ := os.Hostname()
	text = strings.ReplaceAll(text, `Hostname="`+host+`"`, `Hostname="HOST"`)
	text = strings.ReplaceAll(strings.ReplaceAll(text, uuid, "GPU-A"), other, "GPU-B")
	text = regexp.MustCompile(`(?m)^(nomad_gpu_fault_since_seconds\{.*\}) .*$`).ReplaceAllString(text, "$1 TIME")
	golden(t, "metrics.txt", text)
}
