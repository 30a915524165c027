// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"slices"
	"strings"
)

// The modes of a task's namespaces. Not every namespace has every mode.
const (
	ModePrivate   = "private"
	ModeHost      = "host"
	ModeShareable = "shareable"

	networkHost   = ModeHost
	networkNone   = "none"
	networkBridge = "bridge"
	networkGroup  = "group"

	// taskPrefix starts the mode that shares a namespace with another task of
	// the allocation, such as "task:redis".
	taskPrefix = "task:"
)

// Partners are the names of the tasks of the allocation whose namespaces a task
// shares, each empty for none.
type Partners struct {
	Network, IPC, PID string
}

// Partners returns the tasks that the author named.
func (c Config) Partners() Partners {
	return Partners{Network: partner(c.NetworkMode), IPC: partner(c.IPCMode), PID: partner(c.PIDMode)}
}

func partner(mode string) string {
	name, found := strings.CutPrefix(mode, taskPrefix)
	if !found {
		return ""
	}
	return name
}

// networkMode is the mode that the config asks for, "" for the default.
func (c Config) networkMode() string {
	if c.HostNetwork {
		return networkHost
	}
	return c.NetworkMode
}

// UsesHostNetwork reports whether the author asked for the host's network.
func (c Config) UsesHostNetwork() bool { return c.networkMode() == networkHost }

// UsesBridge reports whether the author wants a network for the task alone.
func (c Config) UsesBridge() bool { return c.networkMode() == networkBridge }

// UsesGroupNetwork reports whether the author insists on the group's network.
func (c Config) UsesGroupNetwork() bool { return c.networkMode() == networkGroup }

// LeavesGroupNetwork reports whether the author wants another network than the
// group's.
func (c Config) LeavesGroupNetwork() bool {
	return !slices.Contains([]string{"", networkGroup}, c.networkMode())
}

// OffersIPC reports whether other tasks of the allocation may share the task's
// IPC namespace and its /dev/shm.
func (c Config) OffersIPC() bool { return c.IPCMode == ModeShareable }

func (c Config) checkModes(m *Mistakes) {
	for _, mode := range []struct {
		key, value string
		valid      []string
	}{
		{"network_mode", c.NetworkMode, []string{networkHost, networkNone, networkBridge, networkGroup, taskPrefix}},
		{"ipc_mode", c.IPCMode, []string{ModePrivate, ModeShareable, ModeHost, taskPrefix}},
		{"pid_mode", c.PIDMode, []string{ModePrivate, ModeHost, taskPrefix}},
		{"cgroupns_mode", c.CgroupNSMode, []string{ModePrivate, ModeHost}},
	} {
		if mode.value == "" || slices.Contains(mode.valid, mode.value) && mode.value != taskPrefix {
			continue
		}
		if slices.Contains(mode.valid, taskPrefix) && partner(mode.value) != "" {
			continue
		}
		valid := strings.ReplaceAll(strings.Join(mode.valid, ", "), taskPrefix, taskPrefix+"<name of another task of the group>")
		m.Add(mode.key, "%q is not one of %s", mode.value, valid)
	}
	if c.HostNetwork && c.NetworkMode != "" && c.NetworkMode != networkHost {
		m.Add("host_network", "contradicts network_mode %q; remove one of them", c.NetworkMode)
	}
	if c.ShmSize != "" && (c.IPCMode == ModeHost || c.Partners().IPC != "") {
		m.Add("shm_size", "cannot be set with ipc_mode %q, which brings a /dev/shm of its own", c.IPCMode)
	}
}
