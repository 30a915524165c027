// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// The modes of a task's namespaces. Not every namespace has every mode.
const (
	modePrivate   = "private"
	modeHost      = "host"
	modeShareable = "shareable"

	networkHost   = modeHost
	networkNone   = "none"
	networkBridge = "bridge"
	networkGroup  = "group"

	// taskPrefix starts the mode that shares a namespace with another task of
	// the allocation, such as "task:redis".
	taskPrefix = "task:"
)

// Namespaces are the paths of namespaces that a container joins, each empty for
// one of its own or for none.
type Namespaces struct {
	Network, IPC, PID string
}

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
func (c Config) OffersIPC() bool { return c.IPCMode == modeShareable }

func (c Config) checkModes(m *Mistakes) {
	for _, mode := range []struct {
		key, value string
		valid      []string
	}{
		{"network_mode", c.NetworkMode, []string{networkHost, networkNone, networkBridge, networkGroup, taskPrefix}},
		{"ipc_mode", c.IPCMode, []string{modePrivate, modeShareable, modeHost, taskPrefix}},
		{"pid_mode", c.PIDMode, []string{modePrivate, modeHost, taskPrefix}},
		{"cgroupns_mode", c.CgroupNSMode, []string{modePrivate, modeHost}},
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
	if c.ShmSize != "" && (c.IPCMode == modeHost || c.Partners().IPC != "") {
		m.Add("shm_size", "cannot be set with ipc_mode %q, which brings a /dev/shm of its own", c.IPCMode)
	}
}

func (t Task) namespaces() oci.SpecOpts {
	hostname := t.Config.Hostname
	if hostname == "" {
		hostname = t.Hostname
	}
	return edit(func(s *oci.Spec) {
		s.Hostname = hostname
		setNamespace(s, specs.NetworkNamespace, t.Config.networkMode() == networkHost, t.Namespaces.Network)
		setNamespace(s, specs.PIDNamespace, t.Config.PIDMode == modeHost, t.Namespaces.PID)
		setNamespace(s, specs.IPCNamespace, t.Config.IPCMode == modeHost, t.Namespaces.IPC)
		setNamespace(s, specs.CgroupNamespace, t.cgroupNSMode() == modeHost, "")
	})
}

// cgroupNSMode is Docker's choice where the author makes none: the host's on
// cgroup v1, one of its own on v2, where the host's would show a task everybody's
// control groups and hide its own limits.
func (t Task) cgroupNSMode() string {
	switch {
	case t.Config.CgroupNSMode != "":
		return t.Config.CgroupNSMode
	case t.Unified:
		return modePrivate
	}
	return modeHost
}

// setNamespace gives the container the host's namespace, the one at a path, or,
// without a path, one of its own.
func setNamespace(s *oci.Spec, kind specs.LinuxNamespaceType, host bool, path string) {
	i := slices.IndexFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	switch {
	case host && i >= 0:
		s.Linux.Namespaces = slices.Delete(s.Linux.Namespaces, i, i+1)
	case host:
	case i >= 0:
		s.Linux.Namespaces[i].Path = path
	default:
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
	}
}
