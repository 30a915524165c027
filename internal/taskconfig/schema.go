// SPDX-License-Identifier: MPL-2.0

// Package taskconfig is the config block of a task of the driver: its keys with their types
// and defaults (Config, Schema), what an author may write there, and the job around it. The
// driver makes Nomad's schema of it and starts tasks by it; the placement service checks
// jobs by it before it places them.
//
// It is pure: what nodes allow is handed in as a Policy. Every error names all mistakes,
// each with its key and the valid values.
package taskconfig

import (
	"reflect"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
)

// Schema describes the block. Docker's own options are in it, so that they are answered:
// without them Nomad says of a job that used to run only that it knows no such argument.
func Schema() []hclform.Field {
	fields := hclform.Fields(Config{})
	fields = append(fields,
		hclform.Field{Name: "mount", Block: hclform.Fields(dockerMount{}), Repeated: true},
		hclform.Field{Name: "storage_opt", Type: "string", Open: true})
	for _, option := range DockerOptions {
		ours := slices.ContainsFunc(fields, func(f hclform.Field) bool { return f.Name == option.Name })
		if !ours && option.Understood() {
			fields = append(fields, hclform.Field{Name: option.Name, Type: option.Type})
		}
	}
	return fields
}

// dockerMount is Docker's mount block.
type dockerMount struct {
	Type        string `codec:"type"`
	Target      string `codec:"target"`
	Source      string `codec:"source"`
	ReadOnly    bool   `codec:"readonly"`
	BindOptions struct {
		Propagation string `codec:"propagation"`
	} `codec:"bind_options"`
	TmpfsOptions struct {
		Size int64 `codec:"size"`
		Mode int64 `codec:"mode"`
	} `codec:"tmpfs_options"`
	VolumeOptions struct {
		NoCopy       bool                `codec:"no_copy"`
		Labels       []map[string]string `codec:"labels"`
		DriverConfig struct {
			Name    string              `codec:"name"`
			Options []map[string]string `codec:"options"`
		} `codec:"driver_config"`
	} `codec:"volume_options"`
}

// Decode reads the values of a block. The error is hclform.Mistakes, beside which the rest
// is read.
func Decode(written map[string]any) (Config, error) {
	var config Config
	err := hclform.Fill(written, &config)
	config.Docker = map[string]bool{}
	for _, option := range DockerOptions {
		config.Docker[option.Name] = option.Understood() && !isEmpty(written[option.Name])
	}
	return config, err
}

// isEmpty reports whether a value says nothing, such as the value of an option that the
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

// CheckTask checks the block of a task, with all that can be checked without looking at
// the node; inGroupNetwork is whether its group has a network of its own. Volumes come back
// among the mounts. The error names every mistake, those of Decode too.
func CheckTask(name string, written map[string]any, inGroupNetwork bool, policy Policy) (Config, error) {
	var m Mistakes
	config, err := Decode(written)
	m.AddErr("config", err)
	config.Mounts = append(config.Mounts, config.VolumeMounts()...)
	m.AddErr("task name", CheckTaskName(name))
	m.AddErr("config", config.Check(policy))
	config.checkNetwork(inGroupNetwork, &m)
	config.checkPartners(name, &m)
	return config, m.ErrIn(config)
}

// checkNetwork compares the mode with the network of the group.
func (c Config) checkNetwork(group bool, m *Mistakes) {
	key := "network_mode"
	if c.HostNetwork {
		key = "host_network"
	}
	switch {
	case group && c.LeavesGroupNetwork():
		m.Add(key, "contradicts the group's network, which all its tasks share; remove one of them")
	case !group && c.UsesGroupNetwork():
		m.Add(key, "\"group\" needs a network block in the group, such as network { mode = \"bridge\" }")
	}
	if len(c.Ports) > 0 && !c.UsesBridge() {
		m.Add("ports", "are mapped by the driver with network_mode \"bridge\" only; Nomad maps those of a group's own network")
	}
}

// checkPartners refuses a task that wants to share a namespace with itself.
func (c Config) checkPartners(name string, m *Mistakes) {
	partners := c.Partners()
	for _, shared := range []struct{ key, task string }{
		{"network_mode", partners.Network}, {"ipc_mode", partners.IPC}, {"pid_mode", partners.PID},
	} {
		if shared.task == name {
			m.Add(shared.key, "\"task:%s\" names the task itself; name another one of the group", name)
		}
	}
}
