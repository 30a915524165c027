// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func decode(t *testing.T, schema *hclspec.Spec, hcl string, into any) {
	t.Helper()
	var tree map[string]any
	hclutils.NewConfigParser(schema).ParseHCL(t, "config {\n"+hcl+"\n}", &tree)
	var packed []byte
	must.NoError(t, base.MsgPackEncode(&packed, tree))
	must.NoError(t, agentconfig.Decode(packed, into))
}

// defaults are those of a task's config block.
var defaults = taskconfig.Config{NoNewPrivileges: true, Seccomp: true, HostDNS: true, Swappiness: -1}

func TestPluginConfigDefaults(t *testing.T) {
	var config Config
	decode(t, Schema, ``, &config)
	s, err := config.Parse()
	must.NoError(t, err)
	must.Eq(t, Config{
		Enabled: true, Socket: "/run/containerd/containerd.sock", Namespace: "nomad-gpu",
		ContainerdRuntime: "io.containerd.runc.v2", Snapshotter: "overlayfs", StatsInterval: "1s",
		AllowCaps: taskconfig.DefaultCaps, PidsLimit: 16384, MaxStarts: 100, MaxExecSessions: 100, MaxSwap: "0", MaxImageSize: "100G", MaxUnpackedSize: "200G", ImageTimeout: "2h", MaxPullTimeout: "10m", InitPath: "/usr/bin/tini-static", SelfPath: "nomad-gpu-self", HostsDir: "/etc/containerd/certs.d",
		GC:  GCConfig{Image: true, ImageDelay: "3m", Container: true, Period: "5m", Grace: "5m"},
		GPU: GPUConfig{Watchdog: "kill"}, StateDir: "/run/nomad-gpu",
		CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"}, CNIPath: "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni",
		BridgeSubnet: "172.26.128.0/20", Registries: []taskconfig.Auth{},
	}, config)
	must.Eq(t, time.Second, s.StatsEvery)
}

func TestPluginConfigPartsKeepTheirDefaults(t *testing.T) {
	var config Config
	decode(t, Schema, `
volumes { allow_paths = ["/srv"] }
gc { image = false }
gpu { watchdog = "warn" }
auth { helper = "ecr-login" }`, &config)
	must.Eq(t, GCConfig{Image: false, ImageDelay: "3m", Container: true, Period: "5m", Grace: "5m"}, config.GC)
	must.Eq(t, VolumesConfig{AllowPaths: []string{"/srv"}}, config.Volumes)
	must.Eq(t, "warn", config.GPU.Watchdog)
	must.Eq(t, "ecr-login", config.Auth.Helper)
}

func TestPluginConfigSaysWhatIsWrong(t *testing.T) {
	var good Config
	decode(t, Schema, ``, &good)
	for says, change := range map[string]func(*Config){
		`stats_interval: "soon"`:               func(c *Config) { c.StatsInterval = "soon" },
		`gc.grace: "-1s"`:                      func(c *Config) { c.GC.Grace = "-1s" },
		`gpu.watchdog: "shout" is not one of`:  func(c *Config) { c.GPU.Watchdog = "shout" },
		`socket: "run/x" is not an absolute`:   func(c *Config) { c.Socket = "run/x" },
		`cdi_spec_dirs[0]: "cdi"`:              func(c *Config) { c.CDISpecDirs = []string{"cdi"} },
		`volumes.allow_paths[0]: "srv"`:        func(c *Config) { c.Volumes.AllowPaths = []string{"srv"} },
		`allow_caps: unknown capability "fly"`: func(c *Config) { c.AllowCaps = []string{"fly"} },
		`bridge_subnet: "10.0.0.0"`:            func(c *Config) { c.BridgeSubnet = "10.0.0.0" },
		`max_swap: "much" is not valid`:        func(c *Config) { c.MaxSwap = "much" },
		`max_image_size: "-1" is not valid`:    func(c *Config) { c.MaxImageSize = "-1" },
		`max_unpacked_size: "x" is not valid`:  func(c *Config) { c.MaxUnpackedSize = "x" },
		`max_exec_sessions: -1 is below 0`:     func(c *Config) { c.MaxExecSessions = -1 },
		`max_starts: -1 is below 0`:            func(c *Config) { c.MaxStarts = -1 },
		`pids_limit: -1 is below 0`:            func(c *Config) { c.PidsLimit = -1 },
		`registry[0]: server_address`:          func(c *Config) { c.Registries = []taskconfig.Auth{{Username: "a"}} },
		`containerd_runtime: is missing`:       func(c *Config) { c.ContainerdRuntime = "" },
		`namespace: is missing`:                func(c *Config) { c.Namespace = "" },
		`stats_interval: "0s"`:                 func(c *Config) { c.StatsInterval = "0s" },
		`init_path: "tini" is not an absolute`: func(c *Config) { c.InitPath = "tini" },
		`self_path: "bin/self" is not an`:      func(c *Config) { c.SelfPath = "bin/self" },
		`hosts_dir: "certs.d" is not an`:       func(c *Config) { c.HostsDir = "certs.d" },
		`state_dir: "run" is not an absolute`:  func(c *Config) { c.StateDir = "run" },
	} {
		config := good
		change(&config)
		_, err := config.Parse()
		must.ErrorContains(t, err, says)
	}
}

// Values at the edge of validity are taken: no limit, and the shortest of times.
func TestPluginConfigAtItsBounds(t *testing.T) {
	var config Config
	decode(t, Schema, ``, &config)
	config.MaxStarts, config.MaxExecSessions, config.PidsLimit = 0, 0, 0
	config.MaxSwap, config.MaxImageSize, config.HostsDir, config.SelfPath = "0", "0", "", "/bin/self"
	config.StatsInterval = "1ns"
	s, err := config.Parse()
	must.NoError(t, err)
	must.Eq(t, 1, s.StatsEvery)
}

// Every run tells the same mistakes, all of them, in the order of the reference.
func TestMistakesAreToldAllAtOnce(t *testing.T) {
	var plugin Config
	decode(t, Schema, ``, &plugin)
	plugin.BridgeSubnet, plugin.Socket, plugin.GC.Period, plugin.CDISpecDirs = "x", "s", "p", []string{"a", "b"}
	plugin.Volumes.AllowPaths, plugin.AllowCaps, plugin.StateDir = []string{"v"}, []string{"fly"}, "d"
	task := defaults
	task.Image, task.Hostname, task.CapAdd, task.CapDrop = "", "-", []string{"fly", "sys_admin"}, []string{"dive"}
	task.Privileged, task.PIDMode, task.IPCMode, task.ShmSize = true, "host", "host", "big"
	task.Mounts = []taskconfig.MountConfig{{Type: "bind", Target: "x"}, {Type: "odd", Target: "/y"}}
	task.Ulimit = []map[string]string{{"b": "1", "a": "1"}}
	task.Sysctl = []map[string]string{{"z.z": "1", "a.a": "1"}}
	task.GPU = taskconfig.GPUConfig{Memory: "lots", Compute: -1, ComputeLimit: 2000}
	for range 20 {
		_, err := plugin.Parse()
		must.Eq(t, []string{"socket", "allow_caps", "volumes.allow_paths[0]", "gc.period", "state_dir", "cdi_spec_dirs[0]", "cdi_spec_dirs[1]", "bridge_subnet"}, mistakenKeys(err))
		err = task.Check(taskconfig.Policy{AllowCaps: taskconfig.DefaultCaps})
		must.Eq(t, []string{
			"image", "hostname", "cap_add", "cap_drop", "privileged", "mounts", "mounts", "shm_size", "shm_size",
			"ipc_mode", "pid_mode", "ulimit", "ulimit", "sysctl", "sysctl", "gpu.memory", "gpu.compute", "gpu.compute_limit",
		}, mistakenKeys(err), must.Sprint(err))
	}
}

func mistakenKeys(err error) []string {
	var keys []string
	for _, match := range regexp.MustCompile(` \(\d+\) ([^:]+): `).FindAllStringSubmatch(err.Error(), -1) {
		keys = append(keys, match[1])
	}
	return keys
}

func TestTaskConfigEveryOption(t *testing.T) {
	var config taskconfig.Config
	decode(t, TaskSchema, `
image              = "redis:7"
command            = "redis-server"
args               = ["--port", "1"]
entrypoint         = ["/entry"]
image_pull_timeout = "1m"
force_pull         = true
auth {
  username = "u"
  password = "p"
  server_address = "r.example"
}
cwd               = "/data"
group_add         = ["video"]
hostname          = "h"
init              = true
tty               = true
cap_add           = ["net_raw"]
cap_drop          = ["chown"]
privileged        = true
no_new_privileges = false
seccomp           = false
seccomp_profile   = "local/p.json"
apparmor_profile  = "a"
selinux_label     = "s"
readonly_rootfs   = true
devices           = ["/dev/fuse"]
cdi_devices       = ["v/c=d"]
mounts = [
  { type = "bind", target = "/t", source = "local/s", options = ["ro"] },
]
shm_size     = "64M"
host_network = false
network_mode = "bridge"
ports        = ["http"]
extra_hosts  = ["db:10.0.0.1"]
host_dns     = false
ipc_mode     = "host"
pid_mode     = "host"
pids_limit   = 100
ulimit { nofile = "1:2" }
sysctl { "net.core.somaxconn" = "1" }
cpu_hard_limit = true
cpu_cfs_period = 50000
cpuset_cpus    = "0"
memory_swap    = "1M"
memory_swappiness = 10
oom_score_adj  = 5
runtime        = "r"
snapshotter    = "native"
labels { team = "a" }
gpu {
  memory        = "7GiB"
  compute       = 0.5
  compute_limit = 800
}`, &config)
	must.Eq(t, taskconfig.Config{
		Image: "redis:7", Command: "redis-server", Args: []string{"--port", "1"}, Entrypoint: []string{"/entry"},
		ImagePullTimeout: "1m", ForcePull: true, Auth: taskconfig.Auth{Username: "u", Password: "p", ServerAddress: "r.example"},
		Cwd: "/data", GroupAdd: []string{"video"}, Hostname: "h", Init: true, TTY: true,
		CapAdd: []string{"net_raw"}, CapDrop: []string{"chown"}, Privileged: true,
		SeccompProfile: "local/p.json", AppArmor: "a", SELinuxLabel: "s", ReadonlyRootfs: true,
		Devices: []string{"/dev/fuse"}, CDIDevices: []string{"v/c=d"},
		Mounts:  []taskconfig.MountConfig{{Type: "bind", Target: "/t", Source: "local/s", Options: []string{"ro"}}},
		ShmSize: "64M", NetworkMode: "bridge", Ports: []string{"http"}, ExtraHosts: []string{"db:10.0.0.1"},
		IPCMode: "host", PIDMode: "host", PidsLimit: 100,
		Ulimit: []map[string]string{{"nofile": "1:2"}}, Sysctl: []map[string]string{{"net.core.somaxconn": "1"}},
		CPUHardLimit: true, CPUCFSPeriod: 50000, CPUSetCPUs: "0", MemorySwap: "1M", Swappiness: 10, OOMScoreAdj: 5,
		Runtime: "r", Snapshotter: "native", Labels: []map[string]string{{"team": "a"}},
		GPU: taskconfig.GPUConfig{Memory: "7GiB", Compute: 500, ComputeLimit: 800, OnFault: taskconfig.OnFaultRestart},
	}, config)
}

func TestTaskConfigDefaults(t *testing.T) {
	var config taskconfig.Config
	decode(t, TaskSchema, `image = "redis:7"`, &config)
	want := defaults
	want.Image, want.Mounts = "redis:7", []taskconfig.MountConfig{}
	must.Eq(t, want, config)
}

func TestUnknownKeysAreErrors(t *testing.T) {
	for name, schema := range map[string]*hclspec.Spec{"plugin": Schema, "task": TaskSchema} {
		decoder, diags := hclspecutils.Convert(schema)
		must.False(t, diags.HasErrors())
		_, _, errs := hclutils.ParseHclInterface(map[string]any{"imagee": "y"}, decoder, nil)
		must.Greater(t, 0, len(errs), must.Sprint(name))
		must.ErrorContains(t, errors.Join(errs...), "imagee")
	}
}
