// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// hostPrograms gives a container the host's programs, which the operator allows.
const hostPrograms = `mounts = [
  { type = "bind", source = "/usr", target = "/usr", options = ["ro"] },
  { type = "bind", source = "/usr/lib64", target = "/lib64", options = ["ro"] },
  { type = "bind", source = "/usr/lib", target = "/lib", options = ["ro"] },
]
`

// script is the config of a task that runs a shell script of the host's programs.
func script(text, config string) string {
	text = "export PATH=/usr/bin:/usr/sbin\n" + text + "\nexec sleep 1000\n"
	quoted, _ := json.Marshal(text) // a string
	return hostPrograms + "entrypoint = [\"/usr/bin/dash\", \"-c\", " + strings.ReplaceAll(string(quoted), "${", "$${") + "]\n" + config
}

// What docs/driver.md and docs/security.md say of a task: what it prints, on a real Nomad.
func TestWhatTasksFind(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced, Driver: hostTools + fmt.Sprintf("init_path = %q\n", filepath.Join(root, "bin", "e2e", "gpuprobe"))})
	rows := map[string]struct{ script, config, task, want string }{
		"a user has no capabilities":     {"echo $(id -u) $(id -g) $(grep CapEff /proc/self/status)", "", "user = \"1000:1001\"", "1000 1001 CapEff: 0000000000000000"},
		"root has thirteen":              {"grep CapEff /proc/self/status | cut -f2", "", "", "00000000a80405fb"},
		"no new privileges and seccomp":  {"echo $(grep -E 'NoNewPrivs|Seccomp:' /proc/self/status)", "", "", "NoNewPrivs: 1 Seccomp: 2"},
		"a working directory":            {"pwd", "cwd = \"/usr/lib\"", "", "/usr/lib"},
		"a host name":                    {"cat /proc/sys/kernel/hostname", "hostname = \"host-a\"", "", "host-a"},
		"the kernel's settings":          {"echo x 2>/dev/null > /proc/sys/kernel/core_pattern || echo refused", "", "", "refused"},
		"the kernel's memory":            {"head -c 1 /proc/kcore | wc -c", "", "", "0"},
		"loopback alone":                 {"grep -c : /proc/net/dev", "", "", "1"},
		"its own processes":              {"echo $$", "", "", "1"},
		"the logs":                       {"touch /alloc/logs/x 2>/dev/null || echo read-only", "", "", "read-only"},
		"the links of logs":              {"ln -sf /etc/passwd /alloc/logs/.task.stdout.fifo 2>/dev/null || echo read-only", "", "", "read-only"},
		"the directories of Nomad":       {"mv /alloc/data /alloc/x 2>/dev/null || mv /alloc/tmp /alloc/x 2>/dev/null || echo held", "", "", "held"},
		"no setuid and no devices":       {"echo $(grep -cE ' (/alloc|/local|/secrets) .*nosuid,nodev' /proc/mounts)", "", "", "3"},
		"a bounded number of secrets":    {"i=0; while (: > /secrets/f$i) 2>/dev/null; do i=$((i+1)); done; [ $i -gt 4000 ] && [ $i -le 4096 ] && echo bounded || echo $i", "", "", "bounded"},
		"variables that steer GPUs":      {"echo [$CUDA_VISIBLE_DEVICES$NOMAD_GPU_X$HSA_X] $NVIDIA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER", "", "env {\n CUDA_VISIBLE_DEVICES = \"7\"\n NOMAD_GPU_X = \"y\"\n NVIDIA_VISIBLE_DEVICES = \"all\"\n CUDA_DEVICE_ORDER = \"PCI_BUS_ID\"\n}", "[] void PCI_BUS_ID"},
		"shared memory":                  {"df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2", "shm_size = \"32M\"", "", "32768"},
		"the image's files":              {"touch /x 2>/dev/null || echo read-only", "readonly_rootfs = true", "", "read-only"},
		"open files":                     {"echo $(ulimit -Sn) $(ulimit -Hn)", "ulimit = {\n nofile = \"100:200\"\n}", "", "100 200"},
		"ports below 1024":               {"cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "", "", "0"},
		"whom the kernel kills first":    {"cat /proc/self/oom_score_adj", "oom_score_adj = 500", "", "500"},
		"processes":                      {"cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null", "pids_limit = 50", "", "50"},
		"the operator's processes":       {"cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null", "", "", "16384"},
		"memory":                         {"cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null", "", "", "67108864"},
		"limits are read-only":           {"echo 1 2>/dev/null > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo refused", "", "", "refused"},
		"names of hosts":                 {"grep -c '10.0.0.5.db' /etc/hosts", "extra_hosts = [\"db:10.0.0.5\"]", "", "1"},
		"read-only below a mount":        {"touch /usr/x 2>/dev/null || echo read-only", "", "", "read-only"},
		"no terminal of the host's":      {"mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda 2>/dev/null || echo refused", "", "", "refused"},
		"the first process of init":      {"[ $$ != 1 ] && readlink /proc/1/exe", "init = true", "", "/run/nomad-gpu/init"},
		"capabilities that were dropped": {"grep CapBnd /proc/self/status | cut -f2", "cap_drop = [\"all\"]", "", "0000000000000000"},
	}
	id := func(name string) string { return strings.NewReplacer(" ", "-", "'", "").Replace(name) }
	for name, row := range rows {
		register(t, ctx, c, jobSpec{id: id(name), config: script(row.script, row.config), task: row.task, group: noRestart})
	}
	for name, row := range rows {
		alloc, err := c.Running(ctx, id(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if line, err := c.FirstLine(ctx, alloc, "task"); err != nil || string(line) != row.want {
			t.Errorf("%s: a task finds %q, %v; want %q", name, line, err, row.want)
		}
	}
}

// What they say is refused without the operator's permission, and never starts.
func TestWhatTasksAreRefused(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	mount := func(source, target string) string {
		return fmt.Sprintf("mounts = [{ type = \"bind\", source = %q, target = %q }]", source, target)
	}
	rows := map[string]struct{ config, want string }{
		"privileged":    {"privileged = true", "allow_privileged"},
		"pid-host":      {"pid_mode = \"host\"", "allow_privileged"},
		"ipc-host":      {"ipc_mode = \"host\"", "allow_privileged"},
		"cgroupns":      {"cgroupns_mode = \"host\"", "allow_privileged"},
		"capability":    {"cap_add = [\"sys_admin\"]", "CAP_SYS_ADMIN is not allowed on this node"},
		"seccomp":       {"seccomp = false", "allow_unconfined"},
		"profile":       {"seccomp_profile = \"local/p.json\"", "allow_unconfined"},
		"privileges":    {"no_new_privileges = false", "allow_unconfined"},
		"apparmor":      {"apparmor_profile = \"unconfined\"", "allow_unconfined"},
		"selinux":       {"selinux_label = \"x\"", "allow_unconfined"},
		"device":        {"devices = [\"/dev/fuse\"]", "allow_devices"},
		"cdi":           {"cdi_devices = [\"nomad-gpu/nvidia=all\"]", "allow_cdi_devices"},
		"runtime":       {"runtime = \"io.containerd.kata.v2\"", "is not allowed on this node; allowed are [\"io.containerd.runc.v2\"]"},
		"snapshotter":   {"snapshotter = \"native\"", "allow_snapshotters"},
		"host-path":     {mount("/etc", "/mnt"), "volumes"},
		"task-dir":      {mount(".", "/mnt"), "mounts"},
		"outside":       {mount("../../..", "/mnt"), "mounts"},
		"proc":          {mount("local", "/proc/x"), "/proc"},
		"dev":           {mount("local", "/dev/x"), "/dev"},
		"driver-mount":  {mount("local", "/alloc"), "/alloc"},
		"pids":          {"pids_limit = 100000", "16384"},
		"swap":          {"memory_swap = \"1G\"", "max_swap"},
		"pull":          {"image_pull_timeout = \"2h\"", "max_image_pull_timeout"},
		"rtprio":        {"ulimit = {\n rtprio = \"10\"\n}", "sys_nice"},
		"sysctl":        {"sysctl = {\n \"kernel.core_pattern\" = \"x\"\n}", "sysctl"},
		"oom-score":     {"oom_score_adj = -5", "between 0 and 1000"},
		"label":         {"labels = {\n \"io.nomad-gpu.owner\" = \"x\"\n}", "reserved"},
		"cwd":           {"cwd = \"/proc/self/fd/7\"", "/proc"},
		"unknown":       {"imagee = \"x\"", "imagee"},
		"gpu-less":      {"gpu {\n memory = \"1GiB\"\n}", "no GPU"},
		"propagation":   {"mounts = [{ type = \"bind\", source = \"local\", target = \"/mnt\", options = [\"rshared\"] }]", "privileged"},
		"two-networks":  {"network_mode = \"bridge\"\nhost_network = true", "host_network"},
		"missing-image": {"force_pull = true", "pull"},
	}
	for id, row := range rows {
		register(t, ctx, c, jobSpec{id: id, config: row.config, group: noRestart})
	}
	for id, row := range rows {
		failed, err := c.WaitAllocs(ctx, id, "to fail", func(a *api.AllocationListStub) bool { return a.ClientStatus == api.AllocClientStatusFailed }, 1)
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		if status := nomad(t, ctx, c, "alloc", "status", failed[0].ID); !strings.Contains(status, row.want) {
			t.Errorf("%s: nomad alloc status does not say %q:\n%s", id, row.want, status)
		}
	}
	if running := programs(t, c.Nodes[0]); len(running) != 0 {
		t.Errorf("refused tasks run as %v", running)
	}
}

// How tasks end: what an author's signal, time and memory do.
func TestHowTasksEnd(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced, Driver: hostTools})
	rows := map[string]struct {
		script, task string
		stop         bool
		code         int
		says         string
	}{
		"kill-signal":  {"trap 'exit 3' USR2; echo ready; while :; do sleep 0.1; done", "kill_signal = \"SIGUSR2\"", true, 3, ""},
		"sigterm":      {"trap 'exit 4' TERM; echo ready; while :; do sleep 0.1; done", "", true, 4, ""},
		"kill-timeout": {"trap '' TERM; echo ready; while :; do sleep 0.1; done", "kill_timeout = \"1s\"", true, 137, ""},
		"exit-code":    {"exit 7", "", false, 7, ""},
		"memory":       {"x=$(head -c 300000000 /dev/zero | tr '\\0' a); exit 5", "", false, 137, "OOM Killed"},
	}
	for id, row := range rows {
		register(t, ctx, c, jobSpec{id: id, config: script(row.script, ""), task: row.task, group: noRestart})
	}
	for id, row := range rows {
		if row.stop {
			alloc, err := c.Running(ctx, id)
			if err == nil {
				_, err = c.FirstLine(ctx, alloc, "task")
			}
			if err != nil {
				t.Fatal(err)
			}
			stop(t, ctx, c, id)
		}
		ended, err := c.WaitAllocs(ctx, id, "to end", cluster.Terminal, 1)
		if err != nil {
			t.Fatal(err)
		}
		alloc, err := c.Alloc(ctx, ended[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range alloc.TaskStates["task"].Events {
			if e.Type == api.TaskTerminated && (e.ExitCode != row.code || !strings.Contains(e.DisplayMessage, row.says)) {
				t.Errorf("%s ends with %d, %q", id, e.ExitCode, e.DisplayMessage)
			}
		}
	}

	// Without containerd a job stops all the same, and its GPU is for the next when containerd is back.
	node := c.Nodes[0]
	run(t, ctx, c, jobSpec{id: "all", devices: slicesOf(79), task: "kill_timeout = \"1s\""})
	if err := node.KillContainerd(); err != nil {
		t.Fatal(err)
	}
	stop(t, ctx, c, "all")
	if running := programs(t, node); len(running) != 0 {
		t.Errorf("a job that was stopped without containerd runs on as %v", running)
	}
	if err := node.StartContainerd(ctx); err != nil {
		t.Fatal(err)
	}
	run(t, ctx, c, jobSpec{id: "next", devices: slicesOf(79), group: restartsAtOnce})
}
