// SPDX-License-Identifier: MPL-2.0

package taskconfig

import "time"

// Config is the config block of a task, as its author wrote it; the tags are its schema. Names that
// nomad-driver-containerd of Roblox has mean the same here.
type Config struct {
	Image            string   `codec:"image"`
	Command          string   `codec:"command"`
	Args             []string `codec:"args"`
	Entrypoint       []string `codec:"entrypoint"`
	ImagePullTimeout string   `codec:"image_pull_timeout"`
	ForcePull        bool     `codec:"force_pull"`
	Auth             Auth     `codec:"auth"`

	Cwd      string   `codec:"cwd"`
	GroupAdd []string `codec:"group_add"`
	Hostname string   `codec:"hostname"`
	Init     bool     `codec:"init"`
	TTY      bool     `codec:"tty"`

	CapAdd          []string `codec:"cap_add"`
	CapDrop         []string `codec:"cap_drop"`
	Privileged      bool     `codec:"privileged"`
	NoNewPrivileges bool     `codec:"no_new_privileges" default:"true"`
	Seccomp         bool     `codec:"seccomp" default:"true"`
	SeccompProfile  string   `codec:"seccomp_profile"`
	AppArmor        string   `codec:"apparmor_profile"`
	SELinuxLabel    string   `codec:"selinux_label"`
	ReadonlyRootfs  bool     `codec:"readonly_rootfs"`

	Devices    []string      `codec:"devices"`
	CDIDevices []string      `codec:"cdi_devices"`
	Mounts     []MountConfig `codec:"mounts"`
	Volumes    []string      `codec:"volumes"`
	ShmSize    string        `codec:"shm_size"`

	HostNetwork  bool     `codec:"host_network"`
	NetworkMode  string   `codec:"network_mode"`
	Ports        []string `codec:"ports"`
	ExtraHosts   []string `codec:"extra_hosts"`
	HostDNS      bool     `codec:"host_dns" default:"true"`
	IPCMode      string   `codec:"ipc_mode"`
	PIDMode      string   `codec:"pid_mode"`
	CgroupNSMode string   `codec:"cgroupns_mode"`

	PidsLimit    int64               `codec:"pids_limit"`
	Ulimit       []map[string]string `codec:"ulimit"`
	FileLimit    int64               `codec:"file_limit"`
	Sysctl       []map[string]string `codec:"sysctl"`
	CPUHardLimit bool                `codec:"cpu_hard_limit"`
	CPUCFSPeriod int64               `codec:"cpu_cfs_period"`
	CPUSetCPUs   string              `codec:"cpuset_cpus"`
	CPUSetMems   string              `codec:"cpuset_mems"`
	MemorySwap   string              `codec:"memory_swap"`
	Swappiness   int64               `codec:"memory_swappiness" default:"-1"`
	OOMScoreAdj  int64               `codec:"oom_score_adj"`

	Runtime     string              `codec:"runtime"`
	Snapshotter string              `codec:"snapshotter"`
	Labels      []map[string]string `codec:"labels"`
	GPU         GPUConfig           `codec:"gpu"`

	// What jobs for Docker's driver have. Docker says of options that are not known
	// here whether they were written.
	Logging      LoggingConfig       `codec:"logging"`
	Healthchecks *HealthchecksConfig `codec:"healthchecks"`
	Docker       map[string]bool     `codec:"-"`
}

// Auth is how a registry is logged in to.
type Auth struct {
	Username      string `codec:"username"`
	Password      string `codec:"password"`
	ServerAddress string `codec:"server_address"`
}

// MountConfig is one mount as its author wrote it.
type MountConfig struct {
	Type        string   `codec:"type" default:"volume"`
	Source      string   `codec:"source"`
	Target      string   `codec:"target" required:"true"`
	Options     []string `codec:"options"`
	ReadOnly    bool     `codec:"readonly"`
	Propagation string   `codec:"propagation"`
	Size        string   `codec:"size"`
}

// GPUConfig is the gpu block as its author wrote it.
type GPUConfig struct {
	Memory       string `codec:"memory"`
	MemoryLimit  string `codec:"memory_limit"`
	Compute      int64  `codec:"compute" as:"compute"`
	ComputeLimit int64  `codec:"compute_limit" as:"compute"`
	// Priority is that of the task's programs on an MPS server.
	Priority string `codec:"priority"`
	// OnFault is what happens when the task cannot go on on its GPU.
	OnFault string `codec:"on_fault" default:"restart"`
}

// What happens to a task that cannot go on on its GPU.
const (
	OnFaultRestart = "restart"
	OnFaultEvent   = "event"
)

// The priorities of programs on an MPS server.
const (
	PriorityNormal      = "normal"
	PriorityBelowNormal = "below_normal"
)

// Policy is what the operator lets tasks do.
type Policy struct {
	AllowPrivileged bool
	AllowCaps       []string
	AllowRuntimes   []string
	DefaultRuntime  string
	// VolumesEnabled lets tasks mount host paths; AllowPaths, when not empty,
	// are the only ones that they may mount, with all below them.
	VolumesEnabled bool
	AllowPaths     []string
	// AllowDevices and AllowCDIDevices are patterns, as of path.Match, of host
	// device nodes and of CDI devices that tasks may name. A GPU among them goes
	// around Nomad's accounting.
	AllowDevices    []string
	AllowCDIDevices []string
	// PidsLimit is the most processes and threads that a task may have, and its number
	// when it sets none; 0 is no limit.
	PidsLimit int64
	// MaxSwapBytes is the most swap that a task may use, which is the node's.
	MaxSwapBytes int64
	// MaxPullTimeout is the longest that a task may have a pull wait for its registry; 0 is
	// no limit.
	MaxPullTimeout time.Duration
	// AllowUnconfined lets a task replace the default seccomp profile, AppArmor
	// profile or SELinux label, or gain privileges by execve.
	AllowUnconfined bool
	// AllowSnapshotters are patterns, as of path.Match, of snapshotters that a task
	// may name beside DefaultSnapshotter.
	AllowSnapshotters  []string
	DefaultSnapshotter string
}

// merged joins what HCL may deliver as several maps into one.
func merged(maps []map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range maps {
		for key, value := range m {
			all[key] = value
		}
	}
	return all
}

// LabelMap returns the labels that the author wrote.
func (c Config) LabelMap() map[string]string { return merged(c.Labels) }
