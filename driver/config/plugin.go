// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Config is the plugin's configuration, as the operator wrote it.
type Config struct {
	Enabled           bool              `codec:"enabled"`
	Socket            string            `codec:"socket"`
	Namespace         string            `codec:"namespace"`
	ContainerdRuntime string            `codec:"containerd_runtime"`
	AllowRuntimes     []string          `codec:"allow_runtimes"`
	Snapshotter       string            `codec:"snapshotter"`
	StatsInterval     string            `codec:"stats_interval"`
	AllowPrivileged   bool              `codec:"allow_privileged"`
	AllowCaps         []string          `codec:"allow_caps"`
	AllowDevices      []string          `codec:"allow_devices"`
	AllowCDIDevices   []string          `codec:"allow_cdi_devices"`
	PidsLimit         int64             `codec:"pids_limit"`
	MaxStarts         int64             `codec:"max_starts"`
	MaxExecSessions   int64             `codec:"max_exec_sessions"`
	MaxSwap           string            `codec:"max_swap"`
	MaxImageSize      string            `codec:"max_image_size"`
	MaxUnpackedSize   string            `codec:"max_unpacked_size"`
	ImageTimeout      string            `codec:"image_timeout"`
	MaxPullTimeout    string            `codec:"max_image_pull_timeout"`
	AllowUnconfined   bool              `codec:"allow_unconfined"`
	AllowSnapshotters []string          `codec:"allow_snapshotters"`
	InitPath          string            `codec:"init_path"`
	SelfPath          string            `codec:"self_path"`
	HostsDir          string            `codec:"hosts_dir"`
	Auth              AuthConfig        `codec:"auth"`
	Registries        []taskconfig.Auth `codec:"registry"`
	Volumes           VolumesConfig     `codec:"volumes"`
	GC                GCConfig          `codec:"gc"`
	GPU               GPUConfig         `codec:"gpu"`
	StateDir          string            `codec:"state_dir"`
	CDISpecDirs       []string          `codec:"cdi_spec_dirs"`
	CNIPath           string            `codec:"cni_path"`
	BridgeSubnet      string            `codec:"bridge_subnet"`
	DisableLogs       bool              `codec:"disable_log_collection"`
}

// AuthConfig is how registries are logged in to when a task does not say.
type AuthConfig struct {
	Username      string `codec:"username"`
	Password      string `codec:"password"`
	ServerAddress string `codec:"server_address"`
	// Config is a Docker configuration file, Helper the suffix of a credential
	// helper's name ("ecr-login").
	Config string `codec:"config"`
	Helper string `codec:"helper"`
}

// VolumesConfig says which host paths tasks may mount.
type VolumesConfig struct {
	Enabled    bool     `codec:"enabled"`
	AllowPaths []string `codec:"allow_paths"`
}

// GCConfig says what the driver tidies up.
type GCConfig struct {
	Image      bool   `codec:"image"`
	ImageDelay string `codec:"image_delay"`
	Container  bool   `codec:"container"`
	Period     string `codec:"period"`
	Grace      string `codec:"grace"`
}

// GPUConfig is what the driver does about tasks that leave their share.
type GPUConfig struct {
	Watchdog string `codec:"watchdog"`
}

// What the watchdog does with a task that is beyond its share: kill it, or only say so.
const (
	WatchdogKill = "kill"
	WatchdogWarn = "warn"
)

// Schema is the plugin's block in the agent's configuration. Its Go form is Config;
// numbers are text, see hclform.Fill.
var Schema = hclspec.NewObject(map[string]*hclspec.Spec{
	"enabled":            defaulted("enabled", "bool", `true`),
	"socket":             defaulted("socket", "string", `"/run/containerd/containerd.sock"`),
	"namespace":          defaulted("namespace", "string", `"nomad-gpu"`),
	"containerd_runtime": defaulted("containerd_runtime", "string", `"io.containerd.runc.v2"`),
	"allow_runtimes":     hclspec.NewAttr("allow_runtimes", "list(string)", false),
	"snapshotter":        defaulted("snapshotter", "string", `"overlayfs"`),
	"stats_interval":     defaulted("stats_interval", "string", `"1s"`),
	"allow_privileged":   defaulted("allow_privileged", "bool", `false`),
	"allow_caps": defaulted("allow_caps", "list(string)",
		`["audit_write","chown","dac_override","fowner","fsetid","kill","mknod","net_bind_service","setfcap","setgid","setpcap","setuid","sys_chroot"]`),
	"allow_devices":     hclspec.NewAttr("allow_devices", "list(string)", false),
	"allow_cdi_devices": hclspec.NewAttr("allow_cdi_devices", "list(string)", false),
	// Above what any framework is known to need on a machine with eight GPUs, and
	// below what a fork bomb needs to take a node from others. Docker and CRI have no
	// limit of their own; Podman has 2048, and OpenShift 4096.
	"pids_limit":        defaulted("pids_limit", "string", `"16384"`),
	"max_starts":        defaulted("max_starts", "string", `"100"`),
	"max_exec_sessions": defaulted("max_exec_sessions", "string", `"100"`),
	"max_swap":          defaulted("max_swap", "string", `"0"`),
	// The largest images of frameworks have some 20 GB, and twice that unpacked.
	"max_image_size":    defaulted("max_image_size", "string", `"100G"`),
	"max_unpacked_size": defaulted("max_unpacked_size", "string", `"200G"`),
	"image_timeout":     defaulted("image_timeout", "string", `"2h"`),
	// A registry that sends nothing for so long will not.
	"max_image_pull_timeout": defaulted("max_image_pull_timeout", "string", `"10m"`),
	"allow_unconfined":       defaulted("allow_unconfined", "bool", `false`),
	"allow_snapshotters":     hclspec.NewAttr("allow_snapshotters", "list(string)", false),
	"init_path":              defaulted("init_path", "string", `"/usr/bin/tini-static"`),
	"self_path":              defaulted("self_path", "string", `"nomad-gpu-self"`),
	"hosts_dir":              defaulted("hosts_dir", "string", `"/etc/containerd/certs.d"`),
	"auth": hclspec.NewBlock("auth", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"username":       hclspec.NewAttr("username", "string", false),
		"password":       hclspec.NewAttr("password", "string", false),
		"server_address": hclspec.NewAttr("server_address", "string", false),
		"config":         hclspec.NewAttr("config", "string", false),
		"helper":         hclspec.NewAttr("helper", "string", false),
	})),
	"registry": hclspec.NewBlockList("registry", hclspec.NewObject(map[string]*hclspec.Spec{
		"server_address": hclspec.NewAttr("server_address", "string", true),
		"username":       hclspec.NewAttr("username", "string", true),
		"password":       hclspec.NewAttr("password", "string", true),
	})),
	"volumes": blockWithDefaults("volumes", map[string]*hclspec.Spec{
		"enabled":     defaulted("enabled", "bool", `false`),
		"allow_paths": hclspec.NewAttr("allow_paths", "list(string)", false),
	}, `{ enabled = false }`),
	"gc": blockWithDefaults("gc", map[string]*hclspec.Spec{
		"image":       defaulted("image", "bool", `true`),
		"image_delay": defaulted("image_delay", "string", `"3m"`),
		"container":   defaulted("container", "bool", `true`),
		"period":      defaulted("period", "string", `"5m"`),
		"grace":       defaulted("grace", "string", `"5m"`),
	}, `{ image = true, image_delay = "3m", container = true, period = "5m", grace = "5m" }`),
	"gpu": blockWithDefaults("gpu", map[string]*hclspec.Spec{
		"watchdog": defaulted("watchdog", "string", `"kill"`),
	}, `{ watchdog = "kill" }`),
	"state_dir":              defaulted("state_dir", "string", `"`+statedir.Default+`"`),
	"cdi_spec_dirs":          defaulted("cdi_spec_dirs", "list(string)", `["/etc/cdi","/var/run/cdi"]`),
	"cni_path":               defaulted("cni_path", "string", `"/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"`),
	"bridge_subnet":          defaulted("bridge_subnet", "string", `"172.26.128.0/20"`),
	"disable_log_collection": defaulted("disable_log_collection", "bool", `false`),
})

func defaulted(name, kind, literal string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, kind, false), hclspec.NewLiteral(literal))
}

// blockWithDefaults is a block whose defaults hold also where it is left out.
func blockWithDefaults(name string, attributes map[string]*hclspec.Spec, literal string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewBlock(name, false, hclspec.NewObject(attributes)), hclspec.NewLiteral(literal))
}

// Settings is the configuration in the types that the driver works with.
type Settings struct {
	Config
	// The durations of stats_interval, image_timeout, gc.image_delay, gc.period and gc.grace.
	StatsEvery, ImageTimeLimit, GCImageDelay, GCPeriod, GCGrace time.Duration
	// MaxImageBytes and MaxUnpackedBytes are 0 for no limit.
	MaxImageBytes, MaxUnpackedBytes int64
	// Policy is what tasks may do.
	Policy taskconfig.Policy
}

// Parse checks every value; its error names all that are wrong, each with its key
// and its valid values.
func (c Config) Parse() (Settings, error) { return c.parse(taskconfig.Mistakes{}) }

// parse is Parse, with the mistakes that were found before.
func (c Config) parse(m taskconfig.Mistakes) (Settings, error) {
	s := Settings{Config: c}
	if c.Namespace == "" {
		m.Add("namespace", "is missing (write a name of containerd's namespaces, such as \"nomad-gpu\")")
	}
	if c.ContainerdRuntime == "" {
		m.Add("containerd_runtime", "is missing (write a runtime of containerd's, such as \"io.containerd.runc.v2\")")
	}
	c.checkPaths(&m)
	for _, d := range []struct {
		key, text string
		into      *time.Duration
	}{
		{"stats_interval", c.StatsInterval, &s.StatsEvery},
		{"image_timeout", c.ImageTimeout, &s.ImageTimeLimit},
		{"gc.image_delay", c.GC.ImageDelay, &s.GCImageDelay},
		{"gc.period", c.GC.Period, &s.GCPeriod},
		{"gc.grace", c.GC.Grace, &s.GCGrace},
	} {
		value, err := time.ParseDuration(d.text)
		if err != nil || value <= 0 {
			m.Add(d.key, "%q is not a duration above zero (write for example \"30s\" or \"5m\")", d.text)
		}
		*d.into = value
	}
	patience, err := time.ParseDuration(c.MaxPullTimeout)
	if err != nil || patience < 0 {
		m.Add("max_image_pull_timeout", "%q is not a duration (write for example \"10m\", or \"0s\" for no limit)", c.MaxPullTimeout)
	}
	for i, r := range c.Registries {
		if r.ServerAddress == "" || r.Username == "" {
			m.Add(fmt.Sprintf("registry[%d]", i), "server_address %q and username %q must both be written, such as \"registry.example:5000\" and \"puller\"", r.ServerAddress, r.Username)
		}
	}
	if c.MaxStarts < 0 {
		m.Add("max_starts", "%d is below 0 (0 is no limit)", c.MaxStarts)
	}
	if c.MaxExecSessions < 0 {
		m.Add("max_exec_sessions", "%d is below 0 (0 is no limit)", c.MaxExecSessions)
	}
	if c.PidsLimit < 0 {
		m.Add("pids_limit", "%d is below 0 (0 is no limit)", c.PidsLimit)
	}
	if c.GPU.Watchdog != WatchdogKill && c.GPU.Watchdog != WatchdogWarn {
		m.Add("gpu.watchdog", "%q is not one of %s, %s", c.GPU.Watchdog, WatchdogKill, WatchdogWarn)
	}
	if _, _, err := net.ParseCIDR(c.BridgeSubnet); err != nil {
		m.Add("bridge_subnet", "%q is not a network (write for example \"172.26.128.0/20\")", c.BridgeSubnet)
	}
	s.Policy = c.policy()
	s.Policy.MaxPullTimeout = patience
	c.sizes(&m, &s)
	m.AddErr("policy", s.Policy.Check())
	return s, m.ErrIn(Config{})
}

// Idle are warnings of settings that have no effect.
func (c Config) Idle() []string {
	if len(c.Volumes.AllowPaths) > 0 && !c.Volumes.Enabled {
		return []string{"volumes.allow_paths has no effect without volumes.enabled = true: tasks mount no path of the host"}
	}
	return nil
}

// sizes reads what the operator wrote as sizes.
func (c Config) sizes(m *taskconfig.Mistakes, s *Settings) {
	for _, size := range []struct {
		key, text, zero string
		into            *int64
	}{
		{"max_swap", c.MaxSwap, "none", &s.Policy.MaxSwapBytes},
		{"max_image_size", c.MaxImageSize, "no limit", &s.MaxImageBytes},
		{"max_unpacked_size", c.MaxUnpackedSize, "no limit", &s.MaxUnpackedBytes},
	} {
		value, err := gpu.ParseBytesOrZero(size.text)
		if err != nil {
			m.Add(size.key, "%v; 0 is %s", err, size.zero)
		}
		*size.into = value
	}
}

// policy is what the configuration lets tasks do.
func (c Config) policy() taskconfig.Policy {
	return taskconfig.Policy{
		AllowPrivileged: c.AllowPrivileged, AllowCaps: c.AllowCaps,
		AllowDevices: c.AllowDevices, AllowCDIDevices: c.AllowCDIDevices,
		AllowRuntimes: c.AllowRuntimes, DefaultRuntime: c.ContainerdRuntime,
		VolumesEnabled: c.Volumes.Enabled, AllowPaths: c.Volumes.AllowPaths,
		PidsLimit: c.PidsLimit, AllowUnconfined: c.AllowUnconfined,
		AllowSnapshotters: c.AllowSnapshotters, DefaultSnapshotter: c.Snapshotter,
	}
}

// checkPaths wants paths that mean the same wherever the driver was started.
func (c Config) checkPaths(m *taskconfig.Mistakes) {
	check := func(key, path string) {
		if !filepath.IsAbs(path) {
			m.Add(key, "%q is not an absolute path", path)
		}
	}
	check("socket", c.Socket)
	check("init_path", c.InitPath)
	if strings.Contains(c.SelfPath, "/") {
		check("self_path", c.SelfPath)
	}
	if c.HostsDir != "" {
		check("hosts_dir", c.HostsDir)
	}
	for i, dir := range c.Volumes.AllowPaths {
		check(fmt.Sprintf("volumes.allow_paths[%d]", i), dir)
	}
	check("state_dir", c.StateDir)
	for i, dir := range c.CDISpecDirs {
		check(fmt.Sprintf("cdi_spec_dirs[%d]", i), dir)
	}
}
