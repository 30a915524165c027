// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
)

// What an author may write, and what is said of the rest. Every limit stands here
// from both sides. The answers are in testdata/check.txt.
func TestCheck(t *testing.T) {
	node := Policy{
		AllowCaps: DefaultCaps, DefaultRuntime: "runc", AllowRuntimes: []string{"runsc"},
		AllowDevices: []string{"/dev/fuse", "/dev/loop*"}, AllowCDIDevices: []string{"a.b/c=*"}, MaxSwapBytes: 1 << 40, MaxPullTimeout: 10 * time.Minute,
	}
	text := strings.Repeat("x", 63)
	var said strings.Builder
	for _, row := range []struct {
		name   string
		change func(*Config)
	}{
		{"nothing", func(c *Config) {}},
		{"no image", func(c *Config) { c.Image = "" }},
		{"image that is not a reference", func(c *Config) { c.Image = "UPPER" }},
		{"archive", func(c *Config) { c.Image = "local/My Image.tar" }},
		{"archive that gzip made smaller", func(c *Config) { c.Image = "local/My Image.tar.gz" }},
		{"archive of the short name", func(c *Config) { c.Image = "local/My Image.tgz" }},
		{"image of an archive", func(c *Config) { c.Image = ArchiveDomain + "/archive@sha256:" + strings.Repeat("a", 64) }},
		{"no pull timeout", func(c *Config) { c.ImagePullTimeout = "" }},
		{"negative pull timeout", func(c *Config) { c.ImagePullTimeout = "-1s" }},
		{"pull timeout for ever", func(c *Config) { c.ImagePullTimeout = "0s" }},
		{"pull timeout of the operator's", func(c *Config) { c.ImagePullTimeout = "10m" }},
		{"pull timeout above it", func(c *Config) { c.ImagePullTimeout = "10m1s" }},
		{"NUL in the command", func(c *Config) { c.Command = "a\x00" }},
		{"bad UTF-8 in args", func(c *Config) { c.Args = []string{"good", "\xff"} }},
		{"NUL in a hostname is one mistake", func(c *Config) { c.Hostname = "a\x00" }},
		{"NUL in a mount", func(c *Config) { c.Mounts = []MountConfig{{Source: "a\x00", Target: "/x"}} }},
		{"NUL in a second mount", func(c *Config) {
			c.Mounts = []MountConfig{{Source: "a", Target: "/x"}, {Source: "a", Target: "/y\x00"}}
		}},
		{"NUL in a label's name", func(c *Config) { c.Labels = []map[string]string{{"a\x00": "b"}} }},
		{"NUL in a volume", func(c *Config) { c.Volumes = []string{"a:/b\x00"} }},
		{"hostname of 63", func(c *Config) { c.Hostname = text }},
		{"hostname of 64", func(c *Config) { c.Hostname = text + "x" }},
		{"hostname with a hyphen last", func(c *Config) { c.Hostname = "a-" }},
		{"host entry", func(c *Config) { c.ExtraHosts = []string{"db:10.0.0.1", "v6:[::1]", "host:host-gateway"} }},
		{"host entries without", func(c *Config) {
			c.ExtraHosts = []string{"db", ":10.0.0.1", "a:b", "a b:10.0.0.1", "db:10.0.0.1", "z:fe80::1%eth0"}
		}},
		{"targets of the runtime", func(c *Config) {
			c.Mounts = []MountConfig{{Type: "tmpfs", Target: "/proc"}, {Type: "tmpfs", Target: "/sys/x"}, {Type: "tmpfs", Target: "/dev/y"}, {Type: "tmpfs", Target: "/dev/shm"}, {Type: "tmpfs", Target: "/device"}}
		}},
		{"targets that are none", func(c *Config) {
			c.Mounts = []MountConfig{{Type: "tmpfs", Target: "/"}, {Type: "tmpfs", Target: "x"}, {Type: "tmpfs", Target: "/x/"}, {Type: "tmpfs", Target: "/x/../y"}}
		}},
		{"mounts", func(c *Config) {
			c.Mounts = []MountConfig{{Source: "a", Target: "/a"}, {Type: "bind", Source: "/b", Target: "/b", Options: []string{"ro", "nosuid"}, Propagation: "rslave"}, {Type: "tmpfs", Source: "tmpfs", Target: "/c", Size: "1M", Options: []string{"mode=1777", "size=50%", "nr_inodes=1k"}}}
		}},
		{"mounts with mistakes", func(c *Config) {
			c.Mounts = []MountConfig{{Type: "nfs", Source: "a", Target: "/a"}, {Target: "/b"}, {Type: "tmpfs", Source: "x", Target: "/c"}, {Source: "a", Target: "/d", Propagation: "up"},
				{Source: "a", Target: "/e", Size: "1M"}, {Source: "a", Target: "/f", Options: []string{"ro", "lowerdir=/"}}, {Source: "a", Target: "/g", Options: []string{"size=1"}},
				{Type: "tmpfs", Target: "/h", Options: []string{"size"}}, {Type: "tmpfs", Target: "/i", Size: "big"}, {Type: "tmpfs", Target: "/j", Size: "0"},
				{Type: "tmpfs", Target: "/k", Options: []string{"size=1G,huge=always"}}, {Type: "tmpfs", Target: "/l", Options: []string{"mode="}}}
		}},
		{"volumes", func(c *Config) { c.Volumes = []string{"a:/a", "/b:/b:ro", "c:/c:rw,rslave"} }},
		{"propagation", func(c *Config) {
			c.Mounts = []MountConfig{{Source: "a", Target: "/a", Propagation: "shared"}, {Source: "b", Target: "/b", ReadOnly: true, Options: []string{"slave"}}, {Source: "c", Target: "/c", Options: []string{"ro", "rw", "slave"}}}
		}},
		{"propagation of a privileged task", func(c *Config) {
			c.Privileged = true
			c.Mounts = []MountConfig{{Source: "a", Target: "/a", Propagation: "rshared"}, {Source: "b", Target: "/b", ReadOnly: true, Propagation: "rslave"}}
		}},
		{"volumes with mistakes", func(c *Config) {
			c.Volumes = []string{"a", ":/b", "c:", "d:/d:ro:x", "e:/e:z", "f:/f:Z", "g:/g:nocopy", "h:/h:"}
		}},
		{"logging that Nomad does", func(c *Config) { c.Logging.Driver = "local" }},
		{"logging of the type first", func(c *Config) { c.Logging = LoggingConfig{Type: "json-file", Driver: "fluentd"} }},
		{"no logging", func(c *Config) { c.Logging.Type = "none" }},
		{"logging elsewhere", func(c *Config) {
			c.Logging = LoggingConfig{Type: "fluentd", Config: []map[string]string{{"tag": "x", "max-size": "1m"}}}
		}},
		{"health checks off", func(c *Config) { c.Healthchecks = &HealthchecksConfig{Disable: true} }},
		{"health checks on", func(c *Config) { c.Healthchecks = &HealthchecksConfig{} }},
		{"options of Docker's", func(c *Config) {
			c.Docker = map[string]bool{"work_dir": true, "image": true, "load": false, "mac_address": true, "interactive": true}
		}},
		{"devices", func(c *Config) { c.Devices = []string{"/dev/fuse", "/dev/loop0:/dev/disk:r"} }},
		{"devices with mistakes", func(c *Config) {
			c.Devices = []string{"/dev/fuse", "/dev/kmsg", "fuse", "/dev/fuse:/x", "/dev/fuse:/dev/x:", "/dev/fuse:/dev/x:rwx", "/dev/fuse:/dev/x:r:w", "/dev/../etc"}
		}},
		{"CDI devices", func(c *Config) { c.CDIDevices = []string{"a.b/c=1", "a.b/d=1"} }},
		{"capabilities", func(c *Config) { c.CapAdd, c.CapDrop = []string{"chown", "CAP_KILL"}, []string{"ALL"} }},
		{"all allowed capabilities", func(c *Config) { c.CapAdd = []string{"all"} }},
		{"capabilities with mistakes", func(c *Config) {
			c.CapAdd, c.CapDrop = []string{"chown", "sys_admin", "net_raw"}, []string{"fly"}
		}},
		{"privileges", func(c *Config) { c.Privileged, c.PIDMode, c.IPCMode = true, "host", "host" }},
		{"profile without seccomp", func(c *Config) { c.Seccomp, c.SeccompProfile = false, "local/p.json" }},
		{"no seccomp", func(c *Config) { c.Seccomp = false }},
		{"a profile", func(c *Config) { c.SeccompProfile = "local/p.json" }},
		{"default runtime", func(c *Config) { c.Runtime = "runc" }},
		{"allowed runtime", func(c *Config) { c.Runtime = "runsc" }},
		{"other runtime", func(c *Config) { c.Runtime = "kata" }},
		{"modes", func(c *Config) {
			c.NetworkMode, c.IPCMode, c.PIDMode, c.CgroupNSMode = "task:a", "shareable", "task:b", "private"
		}},
		{"modes with mistakes", func(c *Config) {
			c.NetworkMode, c.IPCMode, c.PIDMode, c.CgroupNSMode = "container:a", "task:", "shareable", "task:a"
		}},
		{"host network twice", func(c *Config) { c.HostNetwork, c.NetworkMode = true, "host" }},
		{"host network and another", func(c *Config) { c.HostNetwork, c.NetworkMode = true, "bridge" }},
		{"shm_size", func(c *Config) { c.ShmSize = "1K" }},
		{"shm_size of another task", func(c *Config) { c.ShmSize, c.IPCMode = "1M", "task:a" }},
		{"sizes with mistakes", func(c *Config) { c.ShmSize, c.MemorySwap = "0", "much" }},
		{"negative sizes", func(c *Config) { c.ShmSize, c.MemorySwap = "-1", "-1" }},
		{"swap, none and most", func(c *Config) { c.MemorySwap = "1024G" }},
		{"swap above the operator's", func(c *Config) { c.MemorySwap = "1025G" }},
		{"a priority above all others", func(c *Config) { c.Ulimit = []map[string]string{{"rtprio": "1"}} }},
		{"swap, too much", func(c *Config) { c.MemorySwap = "1048577G" }},
		{"no swap", func(c *Config) { c.MemorySwap = "0" }},
		{"lowest numbers", func(c *Config) {
			c.PidsLimit, c.CPUCFSPeriod, c.Swappiness, c.OOMScoreAdj, c.FileLimit = -1, 0, -1, 0, 0
		}},
		{"highest numbers", func(c *Config) {
			c.PidsLimit, c.CPUCFSPeriod, c.Swappiness, c.OOMScoreAdj, c.FileLimit = 1<<22, 1000000, 100, 1000, 1<<30
		}},
		{"below the lowest", func(c *Config) {
			c.PidsLimit, c.CPUCFSPeriod, c.Swappiness, c.OOMScoreAdj, c.FileLimit = -2, -1, -2, -1, -1
		}},
		{"above the highest", func(c *Config) {
			c.PidsLimit, c.CPUCFSPeriod, c.Swappiness, c.OOMScoreAdj, c.FileLimit = 1<<22+1, 1000001, 101, 1001, 1<<30+1
		}},
		{"least period", func(c *Config) { c.CPUCFSPeriod = 1000 }},
		{"less than the least period", func(c *Config) { c.CPUCFSPeriod = 999 }},
		{"lists of CPUs", func(c *Config) { c.CPUSetCPUs, c.CPUSetMems = "0-3,8", "0" }},
		{"lists that are none", func(c *Config) { c.CPUSetCPUs, c.CPUSetMems = "3-0", "x" }},
		{"limits of a process", func(c *Config) { c.Ulimit = []map[string]string{{"nofile": "1:2"}, {"core": "0"}} }},
		{"limits with mistakes", func(c *Config) { c.Ulimit = []map[string]string{{"nofile": "2:1", "flying": "1"}} }},
		{"open files twice", func(c *Config) { c.Ulimit, c.FileLimit = []map[string]string{{"nofile": "1:2"}}, 3 }},
		{"settings", func(c *Config) {
			c.Sysctl = []map[string]string{{"net.core.somaxconn": "1", "fs.mqueue.msg_max": "1", "kernel.msgmax": "1", "kernel.sem": "1", "kernel.shmmax": "1"}}
		}},
		{"settings of the host", func(c *Config) {
			c.Sysctl = []map[string]string{{"kernel.core_pattern": "x", "vm.swappiness": "1", "net.ipv4/../../kernel/x": "1", "net.a": "1\n2", "net.b\r": "1"}}
		}},
		{"settings of the host's network", func(c *Config) {
			c.HostNetwork, c.Sysctl = true, []map[string]string{{"net.core.somaxconn": "1", "kernel.shmmax": "1"}}
		}},
		{"a share", func(c *Config) { c.GPU = GPUConfig{Memory: "7GiB", Compute: 1000, ComputeLimit: 1000} }},
		{"a share without compute", func(c *Config) { c.GPU = GPUConfig{Compute: 500} }},
		{"a share below", func(c *Config) { c.GPU = GPUConfig{Memory: "7", Compute: -1, ComputeLimit: -1} }},
		{"a share above", func(c *Config) { c.GPU = GPUConfig{Memory: "1T", Compute: 1001, ComputeLimit: 1001} }},
		{"a limit below the guarantee", func(c *Config) { c.GPU = GPUConfig{Compute: 500, ComputeLimit: 499} }},
		{"a limit at the guarantee", func(c *Config) { c.GPU = GPUConfig{Compute: 500, ComputeLimit: 500} }},
		{"a memory limit", func(c *Config) { c.GPU = GPUConfig{MemoryLimit: "10GiB"} }},
		{"a memory limit without unit", func(c *Config) { c.GPU = GPUConfig{MemoryLimit: "10"} }},
		{"on_fault", func(c *Config) { c.GPU.OnFault = OnFaultEvent }},
		{"on_fault to restart", func(c *Config) { c.GPU.OnFault = OnFaultRestart }},
		{"on_fault of another kind", func(c *Config) { c.GPU.OnFault = "panic" }},
		{"priority", func(c *Config) { c.GPU.Priority = PriorityBelowNormal }},
		{"priority of another kind", func(c *Config) { c.GPU.Priority = "high" }},
	} {
		config := defaults()
		config.ImagePullTimeout = "5m"
		row.change(&config)
		answer := "fine"
		if err := config.Check(node); err != nil {
			answer = err.Error()
		}
		fmt.Fprintf(&said, "%s: %s\n", row.name, answer)
	}
	golden.Compare(t, "check.txt", said.String())
}

// Every option of Docker's that has no meaning here is answered with its own note, and no
// other is.
func TestOptionsOfDockersAreAnswered(t *testing.T) {
	for _, option := range DockerOptions {
		var m Mistakes
		Config{Docker: map[string]bool{option.Name: true}}.checkDocker(&m)
		want := ""
		if option.Understood() {
			want = option.Name + ": is an option of Docker's driver; " + option.Note
		}
		got := ""
		if err := m.Err(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", option.Name, got, want)
		}
	}
}

// Where a mount of an author's may lie, and of Nomad's volumes.
func TestCheckTarget(t *testing.T) {
	for target, says := range map[string]string{
		"/srv": "", "/device": "", "/dev/shm": "",
		"": "not an absolute, clean path", "/": "not an absolute, clean path", "srv": "not an absolute, clean path", "/srv/": "not an absolute, clean path", "/srv/../dev": "not an absolute, clean path",
		"/dev": "is the runtime's", "/proc/sys": "is the runtime's", "/sys/fs": "is the runtime's", "/dev/shm/x": "is the runtime's",
	} {
		if err := (Config{}).CheckTarget(target); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want %q", target, err, says)
		}
		if err := (Config{Privileged: true}).CheckTarget(target); (err == nil) != (says != "not an absolute, clean path") {
			t.Errorf("%q of a privileged task: got %v", target, err)
		}
	}
}

func TestPrivilegesThatTheOperatorAllows(t *testing.T) {
	config := defaults()
	config.ImagePullTimeout = "5m"
	config.Privileged, config.PIDMode, config.IPCMode = true, ModeHost, ModeHost
	config.Devices = []string{"/dev/kmsg"}
	config.Mounts = []MountConfig{{Type: "bind", Source: "/dev", Target: "/dev"}}
	if err := config.Check(Policy{AllowPrivileged: true, AllowCaps: DefaultCaps}); err != nil {
		t.Error(err)
	}
}

func TestPolicyCheck(t *testing.T) {
	for _, test := range []struct {
		policy Policy
		want   string
	}{
		{Policy{}, ""},
		{Policy{AllowCaps: []string{"all"}, AllowDevices: []string{"/dev/*", "/dev/[ab]"}, AllowCDIDevices: []string{"a/b=*"}}, ""},
		{Policy{AllowCaps: []string{"chown", "fly"}}, `allow_caps: unknown capability "fly"`},
		{Policy{AllowDevices: []string{"/dev/*", "["}, AllowCDIDevices: []string{"]", "[a"}}, `2 mistakes: (1) allow_devices: pattern "[": syntax error in pattern. (2) allow_cdi_devices: pattern "[a": syntax error in pattern.`},
	} {
		got := ""
		if err := test.policy.Check(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v: got %q, want %q", test.policy, got, test.want)
		}
	}
}

func TestCheckTaskName(t *testing.T) {
	for _, name := range []string{"web", "a.b", "ärger", "100%", "a b"} {
		if err := CheckTaskName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", ".", "..", "alloc", "a/b", "a\n", "a\x00", "\xff", "\u202e"} {
		if CheckTaskName(name) == nil {
			t.Errorf("%q passed", name)
		}
	}
}

func TestHosts(t *testing.T) {
	got := Config{ExtraHosts: []string{"db:10.0.0.1", "v6:[::1]", "host:host-gateway"}}.Hosts()
	if fmt.Sprint(got) != "[{db 10.0.0.1} {v6 ::1} {host host-gateway}]" || got[0].IsGateway() || !got[2].IsGateway() {
		t.Errorf("got %v", got)
	}
}

func TestPathAllowed(t *testing.T) {
	for _, test := range []struct {
		policy Policy
		path   string
		says   string
	}{
		{Policy{}, "/srv", "volumes are disabled"},
		{Policy{VolumesEnabled: true}, "/srv", ""},
		{Policy{VolumesEnabled: true, AllowPaths: []string{"/a", "/srv/"}}, "/srv", ""},
		{Policy{VolumesEnabled: true, AllowPaths: []string{"/a", "/srv"}}, "/srv/x", ""},
		{Policy{VolumesEnabled: true, AllowPaths: []string{"/"}}, "/etc", ""},
		{Policy{VolumesEnabled: true, AllowPaths: []string{"/srv"}}, "/srvx", "allowed are"},
		{Policy{VolumesEnabled: true, AllowPaths: []string{"/srv"}}, "/", "allowed are"},
	} {
		err := test.policy.PathAllowed(test.path)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v %s: got %v, want %q", test.policy, test.path, err, test.says)
		}
	}
}

// What is not written is five minutes, or less where the operator says so.
func TestPullTimeout(t *testing.T) {
	for most, want := range map[time.Duration]time.Duration{0: 5 * time.Minute, time.Hour: 5 * time.Minute, time.Second: time.Second} {
		if is, err := (Config{}).PullTimeout(Policy{MaxPullTimeout: most}); err != nil || is != want {
			t.Errorf("with a limit of %s: %s, %v", most, is, err)
		}
	}
}

// A sentence that ends in a period gets no second one.
func TestMistakesAreSentences(t *testing.T) {
	var m Mistakes
	m.Add("a", "is not expected here.")
	m.Add("b", "is not valid")
	if got := m.Err().Error(); got != "2 mistakes: (1) a: is not expected here. (2) b: is not valid." {
		t.Errorf("%s", got)
	}
}
