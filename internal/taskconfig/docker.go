// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// DockerKind says how an option of Nomad's docker driver stands in this driver.
type DockerKind string

// The kinds of Docker's options.
const (
	// DockerSame is an option of the same name and meaning.
	DockerSame DockerKind = "same"
	// DockerForm is one of the same name, and the note says what differs.
	DockerForm DockerKind = "differs"
	// DockerRenamed is one of another name.
	DockerRenamed DockerKind = "other name"
	// DockerRefused is an error that says what to do.
	DockerRefused DockerKind = "refused"
	// DockerUnneeded is an error that says why there is no need for it.
	DockerUnneeded DockerKind = "not needed"
)

// DockerOption is an option of Nomad's docker driver.
type DockerOption struct {
	Name string
	Kind DockerKind
	// Type is the type in HCL of an option that is understood to be refused.
	Type string
	// Note is what an author should know or do.
	Note string
}

// Understood reports whether the option only exists to be answered.
func (o DockerOption) Understood() bool {
	return o.Kind == DockerRenamed || o.Kind == DockerRefused || o.Kind == DockerUnneeded
}

// DockerOptions are all options that a task's config has under Nomad's docker
// driver, in their alphabetical order.
var DockerOptions = []DockerOption{
	{"advertise_ipv6_address", DockerRefused, "bool", "give the group a network of its own, whose CNI configuration has IPv6 addresses, and the service address_mode = \"alloc\""},
	{"args", DockerSame, "", ""},
	{"auth", DockerSame, "", "without email, which registries ignore"},
	{"auth_soft_fail", DockerRefused, "bool", "leave auth out where a registry needs no login; the operator's login is sent to its own registry only"},
	{"cap_add", DockerSame, "", ""},
	{"cap_drop", DockerSame, "", ""},
	{"cgroupns", DockerRenamed, "string", "write cgroupns_mode"},
	{"command", DockerSame, "", ""},
	{"container_exists_attempts", DockerUnneeded, "number", "no two containers of this driver have the same name"},
	{"cpu_cfs_period", DockerSame, "", ""},
	{"cpu_hard_limit", DockerSame, "", ""},
	{"cpuset_cpus", DockerForm, "", "it takes effect here, among the cores that no task has reserved; Docker's driver ignores it"},
	{"devices", DockerForm, "", "a list of strings, each \"HOST:CONTAINER:PERMISSIONS\"; needs the operator's permission"},
	{"dns_options", DockerRefused, "list(string)", "write network { dns { options = [...] } } in the group"},
	{"dns_search_domains", DockerRefused, "list(string)", "write network { dns { searches = [...] } } in the group"},
	{"dns_servers", DockerRefused, "list(string)", "write network { dns { servers = [...] } } in the group"},
	{"entrypoint", DockerSame, "", ""},
	{"extra_hosts", DockerSame, "", ""},
	{"force_pull", DockerSame, "", ""},
	{"group_add", DockerSame, "", ""},
	{"healthchecks", DockerForm, "", "an image's own health checks never run, so disable = true changes nothing; write a check in the task's service block"},
	{"hostname", DockerSame, "", ""},
	{"image", DockerSame, "", ""},
	{"image_pull_timeout", DockerForm, "", "how long a pull may go without progress, not how long it may take"},
	{"init", DockerSame, "", ""},
	{"interactive", DockerUnneeded, "bool", "tasks have no standard input; nomad alloc exec -i gives a command one"},
	{"ipc_mode", DockerForm, "", "\"private\", \"shareable\", \"host\" or \"task:<name>\" in place of \"container:<name>\""},
	{"ipv4_address", DockerRefused, "string", "Nomad and CNI choose addresses; give the group network { mode = \"cni/<name>\" } with a configuration that has the address"},
	{"ipv6_address", DockerRefused, "string", "Nomad and CNI choose addresses; give the group network { mode = \"cni/<name>\" } with a configuration that has the address"},
	{"isolation", DockerUnneeded, "string", "it is for Windows only"},
	{"labels", DockerForm, "", "labels of the container in containerd"},
	{"load", DockerRenamed, "string", "write the path into image, such as image = \"local/image.tar\""},
	{"logging", DockerForm, "", "Nomad collects the output: json-file and local are understood, others are an error that says what to write"},
	{"mac_address", DockerRefused, "string", "give the group network { mode = \"cni/<name>\" } with a configuration that has the address"},
	{"memory_hard_limit", DockerRenamed, "number", "write memory_max in the task's resources"},
	{"mount", DockerRenamed, "", "write mounts = [{ type = \"bind\", source = \"...\", target = \"...\" }]"},
	{"mounts", DockerForm, "", "readonly, propagation, size and options are keys of the mount itself; a \"volume\" is a directory of the task or the host, since there are no Docker volumes"},
	{"network_aliases", DockerRefused, "list(string)", "write a service block, and look it up in Nomad or Consul; or extra_hosts"},
	{"network_mode", DockerForm, "", "\"host\", \"none\", \"bridge\", \"group\" or \"task:<name>\" in place of \"container:<name>\"; other networks are the group's, mode = \"cni/<name>\""},
	{"oom_score_adj", DockerForm, "", "0 to 1000: a task cannot be protected at the host's expense"},
	{"pid_mode", DockerForm, "", "also \"task:<name>\""},
	{"pids_limit", DockerSame, "", ""},
	{"port_map", DockerRefused, "list(map(number))", "write port \"<label>\" { to = <port> } in the group's network block, and with network_mode = \"bridge\" name the label in ports"},
	{"ports", DockerSame, "", "with network_mode = \"bridge\"; those of a group's own network are mapped by Nomad"},
	{"privileged", DockerSame, "", ""},
	{"readonly_rootfs", DockerSame, "", ""},
	{"runtime", DockerForm, "", "containerd's name for a runtime that the operator allows, such as \"io.containerd.runc.v2\""},
	{"security_opt", DockerRenamed, "list(string)", "write no_new_privileges, seccomp, seccomp_profile, apparmor_profile or selinux_label"},
	{"shm_size", DockerForm, "", "a string with a unit, such as \"1G\""},
	{"storage_opt", DockerRefused, "map(string)", "containerd's snapshotters take no options of a task; the container's writable layer lies on the host's disk, without a limit of its own, so write large files to /alloc or a volume"},
	{"sysctl", DockerSame, "", ""},
	{"tty", DockerSame, "", ""},
	{"ulimit", DockerSame, "", ""},
	{"userns_mode", DockerUnneeded, "string", "no container has a user namespace"},
	{"uts_mode", DockerUnneeded, "string", "a task on the host's network has the host's name already; else write hostname"},
	{"volume_driver", DockerRefused, "string", "write a volume block in the group (CSI, or a host volume) and volume_mount in the task"},
	{"volumes", DockerForm, "", "\"SOURCE:TARGET\" or \"SOURCE:TARGET:OPTIONS\" as there; a source must exist, and z and Z are refused"},
	{"work_dir", DockerRenamed, "string", "write cwd"},
}

// checkDocker answers options that are Docker's alone.
func (c Config) checkDocker(m *Mistakes) {
	for _, option := range DockerOptions {
		if c.Docker[option.Name] && option.Understood() {
			m.Add(option.Name, "is an option of Docker's driver; %s", option.Note)
		}
	}
	if c.Healthchecks != nil && !c.Healthchecks.Disable {
		m.Add("healthchecks", "an image's own health checks never run; write a check in the task's service block")
	}
}

// LoggingConfig is Docker's logging block.
type LoggingConfig struct {
	Type   string              `codec:"type"`
	Driver string              `codec:"driver"`
	Config []map[string]string `codec:"config"`
}

// HealthchecksConfig is Docker's healthchecks block.
type HealthchecksConfig struct {
	Disable bool `codec:"disable"`
}

// checkLogging accepts options that ask for the driver's own handling of output.
func (c Config) checkLogging(m *Mistakes) {
	kind := c.Logging.Type
	if kind == "" {
		kind = c.Logging.Driver
	}
	switch kind {
	case "", "json-file", "local":
	case "none":
		m.Add("logging", "%q: write logs { disabled = true } in the task", kind)
	default:
		m.Add("logging", "%q: the output goes to Nomad, and lies in the allocation's /alloc/logs; ship it from there with a sidecar task or the node's log collector, and remove the block", kind)
	}
	for _, option := range slices.Sorted(maps.Keys(merged(c.Logging.Config))) {
		switch option {
		case "max-size", "max-file":
			m.Add("logging", "%s: Nomad keeps the output; write logs { max_files = 10, max_file_size = 10 } in the task, in MiB", option)
		default:
			m.Add("logging", "%s is not an option of Nomad's log collection; remove it", option)
		}
	}
}

// ParseVolume reads an entry of volumes in Docker's words: SOURCE:TARGET[:OPTIONS],
// with options such as ro and rslave.
func ParseVolume(text string) (MountConfig, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return MountConfig{}, fmt.Errorf("%q is not SOURCE:TARGET or SOURCE:TARGET:OPTIONS, such as \"local/conf:/etc/app:ro\"", text)
	}
	volume := MountConfig{Type: "bind", Source: parts[0], Target: parts[1]}
	if len(parts) == 2 {
		return volume, nil
	}
	for option := range strings.SplitSeq(parts[2], ",") {
		switch {
		case option == "ro" || option == "rw" || slices.Contains(propagations, option):
			volume.Options = append(volume.Options, option)
		case option == "z" || option == "Z":
			return volume, fmt.Errorf("%q: option %s changes the SELinux label of the source, which this driver leaves alone; remove it, and set selinux_label if the task needs one", text, option)
		default:
			return volume, fmt.Errorf("%q: option %q is not one of ro, rw, %s", text, option, strings.Join(propagations, ", "))
		}
	}
	return volume, nil
}

// VolumeMounts are the mounts that volumes ask for, without those that are
// mistakes.
func (c Config) VolumeMounts() []MountConfig {
	var mounts []MountConfig
	for _, text := range c.Volumes {
		if volume, err := ParseVolume(text); err == nil {
			mounts = append(mounts, volume)
		}
	}
	return mounts
}
