// SPDX-License-Identifier: MPL-2.0

package device

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A task of another driver, which writes no lease, is known by the reservation in
// its environment; what is neither is told apart.
func TestTasksOfOtherDriversAreMeasured(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "mode = \"slice\"\nslice_memory = \"4GiB\"\nmetrics { address = \"127.0.0.1:0\" }")
	uuid := uuidOf(t, r.until("all is healthy", allHealthy), "slice/T4/0")
	given, err := r.Reserve([]string{uuid + "::1", uuid + "::2"})
	if err != nil {
		t.Fatal(err)
	}
	task := []string{"NOMAD_ALLOC_ID=11111111-2222-3333-4444-555555555555", "NOMAD_TASK_NAME=train", "NOMAD_JOB_NAME=bert", "NOMAD_GROUP_NAME=g", "NOMAD_NAMESPACE=ml\xff"}
	for key, value := range given.Envs {
		task = append(task, key+"="+value)
	}
	pid := func(env ...string) uint32 {
		sleeper := exec.Command("sleep", "600")
		sleeper.Env = append(sleeper.Env, env...)
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
		return uint32(sleeper.Process.Pid)
	}
	server := r.service.reconciler.mps.Status(uuid).PID
	r.happen(uuid, func(c *sim.Condition) {
		c.Processes = []sim.Process{
			{PID: pid(task...), MemoryMiB: 3000, MPS: true}, {PID: pid(task...), MemoryMiB: 500, MPS: true},
			{PID: pid("PATH=/bin"), MemoryMiB: 70}, {PID: uint32(server), MemoryMiB: 30},
		}
	})
	text := scrape(t, r)
	for _, want := range []string{
		`alloc_id="11111111-2222-3333-4444-555555555555"`, `job="bert"`, `namespace="ml?"`,
		"nomad_gpu_task_memory_used_bytes{", " 3.670016e+09", // 3500 MiB
		" 8.589934592e+09", // its limit
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
	for name, want := range map[string]string{"nomad_gpu_foreign_processes": " 1", "nomad_gpu_mps_server_memory_bytes": " 3.145728e+07", "nomad_gpu_task_beside_mps_processes": " 0"} {
		if got := metric(text, name, uuid); got != want {
			t.Errorf("%s is%s, want%s", name, got, want)
		}
	}
	// Under MPS NVML credits the server: what a client uses is not known to be none.
	if got := metric(text, "nomad_gpu_task_compute_ratio", uuid); got != "" {
		t.Errorf("its compute is%s", got)
	}
	stats := r.service.monitor.Stats()
	if got := statsText(stats[0].InstanceStats[uuid+"::2"]); !strings.Contains(got, "Task memory = 3500 / 8192 MiB") || !strings.Contains(got, "bert/train") {
		t.Errorf("statistics are\n%s", got)
	}
}

// A program can claim in its environment to be a task of the containerd driver, and to hold what
// others hold: it is foreign then, takes no one's place in the statistics, and does not end the
// scrape by telling of a task twice.
func TestNoProgramTakesATasksPlace(t *testing.T) {
	r, uuid := tenantRig(t, "metrics { address = \"127.0.0.1:0\" }")
	before := scrape(t, r)
	claim := gpu.Reservation{Version: gpu.ReservationVersion, Vendor: "nvidia", Devices: []gpu.ReservedDevice{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{0, 1, 2}, Of: 3, MemoryMiB: 12288}}}
	value, err := claim.EnvValue()
	if err != nil {
		t.Fatal(err)
	}
	environments := map[int]string{}
	var processes []sim.Process
	for name, env := range map[string]string{
		"its own":    "NOMAD_ALLOC_ID=99999999-2222-3333-4444-555555555555\x00NOMAD_TASK_NAME=thief\x00NOMAD_JOB_NAME=thief\x00",
		"the tenant": "NOMAD_ALLOC_ID=11111111-2222-3333-4444-555555555555\x00NOMAD_TASK_NAME=train\x00NOMAD_JOB_NAME=bert\x00NOMAD_GROUP_NAME=g\x00NOMAD_NAMESPACE=default\x00",
	} {
		pid := 1<<22 + len(name) // above what kernels give to processes
		environments[pid] = env + claim.EnvKey() + "=" + value + "\x00"
		processes = append(processes, sim.Process{PID: uint32(pid), MemoryMiB: 500, MPS: true})
	}
	r.service.monitor.Environ = func(pid int) []byte { return []byte(environments[pid]) }
	r.happen(uuid, func(c *sim.Condition) { c.Processes = append(c.Processes, processes...) })
	text := scrape(t, r)
	for name, want := range map[string]string{"nomad_gpu_foreign_processes": " 1", `nomad_gpu_healthy`: metric(before, "nomad_gpu_healthy", uuid)} {
		if got := metric(text, name, uuid); got != want {
			t.Errorf("%s is%s, want%s", name, got, want)
		}
	}
	if !strings.Contains(text, `task="thief"`) || strings.Count(text, "nomad_gpu_task_memory_limit_bytes{") != 2 {
		t.Errorf("the tasks are\n%s", text)
	}
	stats := r.service.monitor.Stats()
	if got := statsText(stats[0].InstanceStats[uuid+"::1"]); !strings.Contains(got, "Task memory = 3000 / 8192 MiB") || !strings.Contains(got, "bert/train") {
		t.Errorf("the tenant's statistics are\n%s", got)
	}
}

// metric is the value of a device's sample, with the space before it.
func metric(text, name, uuid string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, uuid) {
			_, value, _ := strings.Cut(line, "}")
			return strings.TrimSuffix(value, "\n")
		}
	}
	return ""
}

// Beside dcgm-exporter its names are left to it.
func TestDCGMNamesCanBeLeftOut(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "metrics {\n address = \"127.0.0.1:0\"\n dcgm = false\n}")
	r.until("all is healthy", allHealthy)
	if text := scrape(t, r); strings.Contains(text, "DCGM_FI_DEV_FB_USED") || !strings.Contains(text, "nomad_gpu_healthy") {
		t.Errorf("metrics are\n%s", text)
	}
}

// A task of docker or raw_exec writes no lease. Its GPU is not empty all the
// same: it keeps its mode, and its slices are spared by a cordon, over a restart
// of the plugin too.
func TestTasksOfOtherDriversAreSeen(t *testing.T) {
	r := dgx(t)
	groups := r.groups()
	uuid := uuidOf(t, groups, "slice/H100/0")
	given, err := r.Reserve(sliceIDs(uuid, 3))
	if err != nil {
		t.Fatal(err)
	}
	task := exec.Command("sleep", "600")
	for key, value := range given.Envs {
		task.Env = append(task.Env, key+"="+value)
	}
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = task.Process.Kill()
		_ = task.Wait()
	})
	if err := registry.OpenCordons(r.dir+"/data").Add(uuid, "new fan"); err != nil {
		t.Fatal(err)
	}
	groups = r.until("one slice is left", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 1 })
	if g, _ := find(groups, "slice/H100/0"); !g.Devices[3].Healthy {
		t.Errorf("the task's slice is %q", g.Devices[3].HealthDesc)
	}
	if err := registry.OpenCordons(r.dir + "/data").Remove(uuid); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-h100.hcl", `mode_change_delay = "0s"`)
	// The daemon of the slices is adopted meanwhile.
	groups = r.until("the others have changed", func(g []*device.DeviceGroup) bool {
		_, others := find(g, "slice/H100/1")
		_, n := find(g, "slice/H100/0")
		return others == -1 && n == 1
	})
	if g, _ := find(groups, "slice/H100/0"); !strings.Contains(g.Devices[0].HealthDesc, "waits for its tasks to end") {
		t.Errorf("the first slice is %q", g.Devices[0].HealthDesc)
	}
}
