// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
)

// TaskSchema is the config block of a task. Its Go form is spec.Config; numbers are text,
// see agentconfig.Decode.
var TaskSchema = hclspec.NewObject(withDocker(map[string]*hclspec.Spec{
	"image":              hclspec.NewAttr("image", "string", false), // spec.Config.Check wants it
	"command":            hclspec.NewAttr("command", "string", false),
	"args":               hclspec.NewAttr("args", "list(string)", false),
	"entrypoint":         hclspec.NewAttr("entrypoint", "list(string)", false),
	"image_pull_timeout": hclspec.NewAttr("image_pull_timeout", "string", false),
	"force_pull":         hclspec.NewAttr("force_pull", "bool", false),
	"auth": hclspec.NewBlock("auth", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"username":       hclspec.NewAttr("username", "string", false),
		"password":       hclspec.NewAttr("password", "string", false),
		"server_address": hclspec.NewAttr("server_address", "string", false),
	})),
	"cwd":               hclspec.NewAttr("cwd", "string", false),
	"group_add":         hclspec.NewAttr("group_add", "list(string)", false),
	"hostname":          hclspec.NewAttr("hostname", "string", false),
	"init":              hclspec.NewAttr("init", "bool", false),
	"tty":               hclspec.NewAttr("tty", "bool", false),
	"cap_add":           hclspec.NewAttr("cap_add", "list(string)", false),
	"cap_drop":          hclspec.NewAttr("cap_drop", "list(string)", false),
	"privileged":        hclspec.NewAttr("privileged", "bool", false),
	"no_new_privileges": defaulted("no_new_privileges", "bool", `true`),
	"seccomp":           defaulted("seccomp", "bool", `true`),
	"seccomp_profile":   hclspec.NewAttr("seccomp_profile", "string", false),
	"apparmor_profile":  hclspec.NewAttr("apparmor_profile", "string", false),
	"selinux_label":     hclspec.NewAttr("selinux_label", "string", false),
	"readonly_rootfs":   hclspec.NewAttr("readonly_rootfs", "bool", false),
	"devices":           hclspec.NewAttr("devices", "list(string)", false),
	"cdi_devices":       hclspec.NewAttr("cdi_devices", "list(string)", false),
	"mounts": hclspec.NewBlockList("mounts", hclspec.NewObject(map[string]*hclspec.Spec{
		"type":        defaulted("type", "string", `"volume"`),
		"target":      hclspec.NewAttr("target", "string", true),
		"source":      hclspec.NewAttr("source", "string", false),
		"options":     hclspec.NewAttr("options", "list(string)", false),
		"readonly":    hclspec.NewAttr("readonly", "bool", false),
		"propagation": hclspec.NewAttr("propagation", "string", false),
		"size":        hclspec.NewAttr("size", "string", false),
	})),
	"volumes":           hclspec.NewAttr("volumes", "list(string)", false),
	"shm_size":          hclspec.NewAttr("shm_size", "string", false),
	"host_network":      hclspec.NewAttr("host_network", "bool", false),
	"network_mode":      hclspec.NewAttr("network_mode", "string", false),
	"ports":             hclspec.NewAttr("ports", "list(string)", false),
	"extra_hosts":       hclspec.NewAttr("extra_hosts", "list(string)", false),
	"host_dns":          defaulted("host_dns", "bool", `true`),
	"ipc_mode":          hclspec.NewAttr("ipc_mode", "string", false),
	"pid_mode":          hclspec.NewAttr("pid_mode", "string", false),
	"cgroupns_mode":     hclspec.NewAttr("cgroupns_mode", "string", false),
	"pids_limit":        hclspec.NewAttr("pids_limit", "string", false),
	"ulimit":            hclspec.NewAttr("ulimit", "list(map(string))", false),
	"file_limit":        hclspec.NewAttr("file_limit", "string", false),
	"sysctl":            hclspec.NewAttr("sysctl", "list(map(string))", false),
	"cpu_hard_limit":    hclspec.NewAttr("cpu_hard_limit", "bool", false),
	"cpu_cfs_period":    hclspec.NewAttr("cpu_cfs_period", "string", false),
	"cpuset_cpus":       hclspec.NewAttr("cpuset_cpus", "string", false),
	"cpuset_mems":       hclspec.NewAttr("cpuset_mems", "string", false),
	"memory_swap":       hclspec.NewAttr("memory_swap", "string", false),
	"memory_swappiness": defaulted("memory_swappiness", "string", `"-1"`),
	"oom_score_adj":     hclspec.NewAttr("oom_score_adj", "string", false),
	"runtime":           hclspec.NewAttr("runtime", "string", false),
	"snapshotter":       hclspec.NewAttr("snapshotter", "string", false),
	"labels":            hclspec.NewAttr("labels", "list(map(string))", false),
	"gpu": hclspec.NewBlock("gpu", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"memory":        hclspec.NewAttr("memory", "string", false),
		"memory_limit":  hclspec.NewAttr("memory_limit", "string", false),
		"compute":       hclspec.NewAttr("compute", "string", false),
		"compute_limit": hclspec.NewAttr("compute_limit", "string", false),
		"priority":      hclspec.NewAttr("priority", "string", false),
		"on_fault":      defaulted("on_fault", "string", `"restart"`),
	})),
	"logging": hclspec.NewBlock("logging", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"type":   hclspec.NewAttr("type", "string", false),
		"driver": hclspec.NewAttr("driver", "string", false),
		"config": hclspec.NewAttr("config", "list(map(string))", false),
	})),
	"healthchecks": hclspec.NewBlock("healthchecks", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"disable": hclspec.NewAttr("disable", "bool", false),
	})),
}))

// withDocker adds the options of Docker's driver that are understood in order to be
// answered: without them Nomad says of a job that used to run only that it knows no
// such argument.
func withDocker(options map[string]*hclspec.Spec) map[string]*hclspec.Spec {
	options["mount"] = hclspec.NewBlockList("mount", hclspec.NewObject(dockerMount))
	options["storage_opt"] = hclspec.NewBlockAttrs("storage_opt", "string", false)
	for _, option := range spec.DockerOptions {
		if _, ours := options[option.Name]; !ours && option.Understood() {
			options[option.Name] = hclspec.NewAttr(option.Name, option.Type, false)
		}
	}
	return options
}

// dockerMount is the body of Docker's mount block.
var dockerMount = map[string]*hclspec.Spec{
	"type":     hclspec.NewAttr("type", "string", false),
	"target":   hclspec.NewAttr("target", "string", false),
	"source":   hclspec.NewAttr("source", "string", false),
	"readonly": hclspec.NewAttr("readonly", "bool", false),
	"bind_options": hclspec.NewBlock("bind_options", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"propagation": hclspec.NewAttr("propagation", "string", false),
	})),
	"tmpfs_options": hclspec.NewBlock("tmpfs_options", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"size": hclspec.NewAttr("size", "number", false),
		"mode": hclspec.NewAttr("mode", "number", false),
	})),
	"volume_options": hclspec.NewBlock("volume_options", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"no_copy": hclspec.NewAttr("no_copy", "bool", false),
		"labels":  hclspec.NewAttr("labels", "list(map(string))", false),
		"driver_config": hclspec.NewBlock("driver_config", false, hclspec.NewObject(map[string]*hclspec.Spec{
			"name":    hclspec.NewAttr("name", "string", false),
			"options": hclspec.NewAttr("options", "list(map(string))", false),
		})),
	})),
}

// Task reads the config block of a task and checks all that can be checked
// without looking at the node. Its error names every mistake.
func Task(cfg *drivers.TaskConfig, policy spec.Policy) (spec.Config, error) {
	var m spec.Mistakes
	config, written, err := decodeTask(cfg, &m)
	if err != nil {
		return config, fmt.Errorf("decode task config: %w", err)
	}
	config.Docker = map[string]bool{}
	for _, option := range spec.DockerOptions {
		config.Docker[option.Name] = option.Understood() && !isEmpty(written[option.Name])
	}
	config.Mounts = append(config.Mounts, config.VolumeMounts()...)
	m.AddErr("task name", spec.CheckTaskName(cfg.Name))
	m.AddErr("config", config.Check(policy))
	checkNetwork(cfg, config, &m)
	checkPartners(cfg, config, &m)
	return config, m.ErrIn(config)
}

// decodeTask reads the block into its Go form, and as it was written.
func decodeTask(cfg *drivers.TaskConfig, m *spec.Mistakes) (config spec.Config, written map[string]any, err error) {
	if err := cfg.DecodeDriverConfig(&written); err != nil {
		return config, nil, err
	}
	var packed []byte
	if err := base.MsgPackEncode(&packed, written); err != nil {
		return config, nil, err
	}
	return config, written, addNumbers(m, agentconfig.Decode(packed, &config))
}

// addNumbers notes numbers that cannot be used, beside which the rest was read, and
// returns other errors.
func addNumbers(m *spec.Mistakes, err error) error {
	var numbers agentconfig.Mistakes
	if !errors.As(err, &numbers) {
		return err
	}
	for _, n := range numbers {
		m.Add(n.Key, "%s", n.Problem)
	}
	return nil
}

// OnFault is what the author of a task chose to happen when it cannot go on on its GPU.
func OnFault(cfg *drivers.TaskConfig) string {
	var m spec.Mistakes
	config, _, err := decodeTask(cfg, &m)
	if err != nil {
		return spec.OnFaultRestart // it was decoded when the task was started
	}
	return config.GPU.OnFault
}

// isEmpty reports whether a value says nothing, as that of an option does which the
// author left out.
func isEmpty(value any) bool {
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// checkNetwork holds the mode against the network that the group has.
func checkNetwork(cfg *drivers.TaskConfig, config spec.Config, m *spec.Mistakes) {
	group := cfg.NetworkIsolation != nil && cfg.NetworkIsolation.Path != ""
	key := "network_mode"
	if config.HostNetwork {
		key = "host_network"
	}
	switch {
	case group && config.LeavesGroupNetwork():
		m.Add(key, "contradicts the group's network, which all its tasks share; remove one of them")
	case !group && config.UsesGroupNetwork():
		m.Add(key, "\"group\" needs a network block in the group, such as network { mode = \"bridge\" }")
	}
	if len(config.Ports) > 0 && !config.UsesBridge() {
		m.Add("ports", "are mapped by the driver with network_mode \"bridge\" only; Nomad maps those of a group's own network")
	}
}

// checkPartners refuses a task that wants to share a namespace with itself.
func checkPartners(cfg *drivers.TaskConfig, config spec.Config, m *spec.Mistakes) {
	partners := config.Partners()
	for _, shared := range []struct{ key, task string }{
		{"network_mode", partners.Network}, {"ipc_mode", partners.IPC}, {"pid_mode", partners.PID},
	} {
		if shared.task == cfg.Name {
			m.Add(shared.key, "\"task:%s\" names the task itself; name another one of the group", cfg.Name)
		}
	}
}
