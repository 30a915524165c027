// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// What each option changes of a container that asks for nothing: the lines of its
// specification that are there too, and those that are not.
func TestWhatOptionsChange(t *testing.T) {
	lines := func(task Task) []string {
		s := generate(t, task)
		if task.Config.Privileged {
			s.Linux.Devices, s.Process.Capabilities = nil, nil // those of this machine
		}
		text, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(text), "\n")
	}
	plain := Task{Config: defaults(), Policy: policy, Resources: given}
	before := lines(plain)
	var changes strings.Builder
	for _, row := range []struct {
		name   string
		change func(*Task)
	}{
		{"tty", func(t *Task) { t.Config.TTY = true }},
		{"cwd", func(t *Task) { t.Config.Cwd = "/work" }},
		{"hostname before the allocation's", func(t *Task) { t.Config.Hostname, t.Hostname = "mine", "alloc" }},
		{"hostname of the allocation", func(t *Task) { t.Hostname = "alloc" }},
		{"capabilities", func(t *Task) { t.Config.CapAdd, t.Config.CapDrop = []string{"kill", "chown"}, []string{"all"} }},
		{"capabilities of a wider policy", func(t *Task) {
			t.Policy.AllowCaps = []string{"all"}
			t.Config.CapAdd = []string{"net_raw", "sys_nice"}
		}},
		{"capabilities of a narrower policy", func(t *Task) { t.Policy.AllowCaps = []string{"chown"} }},
		{"new privileges", func(t *Task) { t.Config.NoNewPrivileges = false }},
		{"read-only", func(t *Task) { t.Config.ReadonlyRootfs = true }},
		{"no seccomp", func(t *Task) { t.Config.Seccomp = false }},
		{"a profile", func(t *Task) { t.SeccompProfile = &specs.LinuxSeccomp{DefaultAction: specs.ActLog} }},
		{"AppArmor", func(t *Task) { t.Config.AppArmor, t.AppArmor = "mine", "default" }},
		{"AppArmor, none", func(t *Task) { t.Config.AppArmor, t.AppArmor = "unconfined", "default" }},
		{"SELinux", func(t *Task) { t.Config.SELinuxLabel = "system_u:system_r:container_t:s0" }},
		{"devices", func(t *Task) {
			t.Config.Devices = []string{"/dev/null:/dev/a", "/dev/zero:/dev/b:r"}
			t.Devices = []taskconfig.Device{{HostPath: "/dev/full", ContainerPath: "/dev/c", Permissions: "rw"}}
		}},
		{"privileged", func(t *Task) { t.Config.Privileged = true }},
		{"shares below the kernel's", func(t *Task) { t.Resources.CPUShares = 1 }},
		{"shares above the kernel's", func(t *Task) { t.Resources.CPUShares = 262145 }},
		{"no shares", func(t *Task) { t.Resources.CPUShares = 0 }},
		{"cores", func(t *Task) { t.Resources.CPUSet, t.Config.CPUSetMems = "2-3", "1" }},
		{"a hard limit", func(t *Task) { t.Config.CPUHardLimit = true }},
		{"a hard limit of a period", func(t *Task) { t.Config.CPUHardLimit, t.Config.CPUCFSPeriod = true, 50000 }},
		{"the least hard limit", func(t *Task) { t.Config.CPUHardLimit, t.Resources.CPUFraction = true, 0.0001 }},
		{"a period without a limit", func(t *Task) { t.Config.CPUCFSPeriod = 50000 }},
		{"memory_max", func(t *Task) { t.Resources.MemoryMaxBytes = 512 << 20 }},
		{"memory_max below memory", func(t *Task) { t.Resources.MemoryMaxBytes = 1 << 20 }},
		{"no end of memory", func(t *Task) { t.Resources.MemoryMaxBytes = -1 }},
		{"no memory", func(t *Task) { t.Resources.MemoryBytes = 0 }},
		{"memory_max alone", func(t *Task) { t.Resources.MemoryBytes, t.Resources.MemoryMaxBytes = 0, 1<<20 }},
		{"swap", func(t *Task) { t.Config.MemorySwap = "1M" }},
		{"swap that the kernel does not count", func(t *Task) { t.Config.MemorySwap, t.Resources.SwapAccounting = "1M", false }},
		{"swappiness", func(t *Task) { t.Config.Swappiness = 0 }},
		{"pids", func(t *Task) { t.Config.PidsLimit = 7 }},
		{"oom_score_adj", func(t *Task) { t.Config.OOMScoreAdj = 9 }},
		{"limits of a process", func(t *Task) { t.Config.Ulimit = []map[string]string{{"nofile": "1:2"}, {"core": "0"}} }},
		{"file_limit", func(t *Task) { t.Config.FileLimit = 99 }},
		{"settings", func(t *Task) {
			t.Config.Sysctl = []map[string]string{{"net.core.somaxconn": "1", "net.ipv4.ping_group_range": "1 0"}}
		}},
		{"host network", func(t *Task) { t.Config.HostNetwork = true }},
		{"network of a task", func(t *Task) { t.Config.NetworkMode, t.Namespaces.Network = "task:a", "/proc/9/ns/net" }},
		{"namespaces of others", func(t *Task) { t.Namespaces = Namespaces{Network: "/n", IPC: "/i", PID: "/p"} }},
		{"cgroup namespace", func(t *Task) { t.Config.CgroupNSMode = "private" }},
		{"cgroup namespace on v2", func(t *Task) { t.Unified = true }},
		{"cgroup namespace of the host on v2", func(t *Task) { t.Unified, t.Config.CgroupNSMode = true, "host" }},
		{"control group", func(t *Task) { t.CgroupsPath = "/a/b" }},
		{"init", func(t *Task) { t.Config.Init, t.InitPath = true, "/usr/bin/tini" }},
		{"shm_size", func(t *Task) { t.Config.ShmSize = "1M" }},
		{"shm of the host", func(t *Task) { t.Config.IPCMode = "host" }},
		{"shm of others", func(t *Task) { t.ShmDir = "/run/shm" }},
		{"a tmpfs on /dev/shm", func(t *Task) {
			t.Config.Mounts = []taskconfig.MountConfig{{Type: "tmpfs", Target: "/dev/shm", Size: "2M"}}
		}},
		{"mounts, what lies deeper later", func(t *Task) {
			t.Volumes = []taskconfig.Mount{{Type: "bind", Source: "/v", Target: "/v/w/x", Options: []string{"rbind"}}}
			t.Config.Mounts = []taskconfig.MountConfig{{Source: "/1", Target: "/a/b"}, {Type: "tmpfs", Target: "/t", ReadOnly: true}, {Source: "/2", Target: "/z", Options: []string{"bind", "slave"}, Propagation: "rshared"}}
			t.Mounts = []taskconfig.Mount{{Type: "bind", Source: "/l", Target: "/local", Options: []string{"rbind"}}}
		}},
		{"a mount that the host sees", func(t *Task) {
			t.Volumes = []taskconfig.Mount{{Type: "bind", Source: "/v", Target: "/v", Options: []string{"rshared"}}, {Type: "bind", Source: "/w", Target: "/w", Options: []string{"rslave"}}}
		}},
		{"a mount that sees the host's", func(t *Task) {
			t.Config.Mounts = []taskconfig.MountConfig{{Source: "/v", Target: "/v", Propagation: "slave"}}
		}},
	} {
		task := plain
		row.change(&task)
		after := lines(task)
		fmt.Fprintf(&changes, "== %s\n", row.name)
		for _, line := range less(before, after) {
			fmt.Fprintf(&changes, "- %s\n", strings.TrimSpace(line))
		}
		for _, line := range less(after, before) {
			fmt.Fprintf(&changes, "+ %s\n", strings.TrimSpace(line))
		}
	}
	golden.Compare(t, "options.txt", changes.String())
}

// The options that make a container privileged change its mounts in place. Every
// container that started later could write to its control group, and so to its
// limits.
func TestAPrivilegedTaskLeavesOthersAsTheyAre(t *testing.T) {
	cgroups := func(privileged bool) []string {
		config := defaults()
		config.Privileged = privileged
		for _, m := range generate(t, Task{Config: config, Policy: policy, Resources: given}).Mounts {
			if m.Destination == "/sys/fs/cgroup" {
				return m.Options
			}
		}
		t.Fatal("the control group is not mounted")
		return nil
	}
	before := cgroups(false)
	if !slices.Contains(before, "ro") || slices.Contains(cgroups(true), "ro") {
		t.Error("the options are not those that were asked for")
	}
	if after := cgroups(false); !slices.Equal(before, after) {
		t.Errorf("before a privileged task %q, after it %q", before, after)
	}
}

// less returns the lines of a that b does not have, each as often as it has it more.
func less(a, b []string) []string {
	rest := slices.Clone(b)
	var more []string
	for _, line := range a {
		if i := slices.Index(rest, line); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
			continue
		}
		more = append(more, line)
	}
	return more
}

// What cannot be made into a container is refused, and says why.
func TestOptionsRefuse(t *testing.T) {
	plain := Task{Config: defaults(), Policy: policy, Resources: given}
	for _, test := range []struct {
		name   string
		change func(*Task, *ispec.ImageConfig)
		says   string
	}{
		{"nothing to run", func(_ *Task, i *ispec.ImageConfig) { i.Entrypoint, i.Cmd = nil, nil }, "nothing to run"},
		{"a relative cwd", func(t *Task, _ *ispec.ImageConfig) { t.Config.Cwd = "x" }, `cwd "x" is not absolute`},
		{"a relative cwd of the image", func(_ *Task, i *ispec.ImageConfig) { i.WorkingDir = "x" }, `image: working directory "x"`},
		{"an argument that is no text", func(t *Task, _ *ispec.ImageConfig) { t.Config.Args = []string{"\x00"} }, "is not valid text"},
		{"a size that is none", func(t *Task, _ *ispec.ImageConfig) { t.Config.ShmSize = "x" }, "shm_size:"},
		{"a mount that is none", func(t *Task, _ *ispec.ImageConfig) { t.Config.Mounts = []taskconfig.MountConfig{{Target: "x"}} }, "mounts: target"},
		{"a mount over ours", func(t *Task, _ *ispec.ImageConfig) {
			t.Mounts = []taskconfig.Mount{{Target: "/alloc/x"}}
			t.Config.Mounts = []taskconfig.MountConfig{{Type: "tmpfs", Target: "/alloc"}}
		}, `target "/alloc" would cover "/alloc/x"`},
		{"a mount over a volume", func(t *Task, _ *ispec.ImageConfig) {
			t.Volumes = []taskconfig.Mount{{Target: "/v/x"}}
			t.Config.Mounts = []taskconfig.MountConfig{{Type: "tmpfs", Target: "/v"}}
		}, `target "/v" would cover a volume`},
		{"a mount over init", func(t *Task, _ *ispec.ImageConfig) {
			t.Config.Init, t.Config.Mounts = true, []taskconfig.MountConfig{{Type: "tmpfs", Target: "/run/nomad-gpu"}}
		}, `would cover "/run/nomad-gpu/init"`},
		{"a capability that is not allowed", func(t *Task, _ *ispec.ImageConfig) { t.Config.CapAdd = []string{"sys_admin"} }, "cap_add: CAP_SYS_ADMIN"},
		{"a device that is none", func(t *Task, _ *ispec.ImageConfig) { t.Config.Devices = []string{"x"} }, "devices:"},
		{"shm beside a daemon's", func(t *Task, _ *ispec.ImageConfig) { t.Share.MPS, t.ShmDir = true, "/x" }, "uses the /dev/shm of the MPS daemon"},
	} {
		task, config := plain, image
		test.change(&task, &config)
		if _, err := task.Options(config); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.says)
		}
	}
	// Volumes of Nomad's may lie in each other.
	plain.Volumes = []taskconfig.Mount{{Target: "/v/x"}, {Target: "/v"}}
	if _, err := plain.Options(image); err != nil {
		t.Error(err)
	}
	for have, want := range map[string]string{"": "/", "/data": "/data"} {
		if got, err := plain.cwd(ispec.ImageConfig{WorkingDir: have}); err != nil || got != want {
			t.Errorf("working directory %q: got %q, %v", have, got, err)
		}
	}
}
