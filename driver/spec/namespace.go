// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"

	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Namespaces are the paths of namespaces that a container joins, each empty for
// one of its own or for none.
type Namespaces struct {
	Network, IPC, PID string
}

func (t Task) namespaces() oci.SpecOpts {
	hostname := t.Config.Hostname
	if hostname == "" {
		hostname = t.Hostname
	}
	return edit(func(s *oci.Spec) {
		s.Hostname = hostname
		setNamespace(s, specs.NetworkNamespace, t.Config.UsesHostNetwork(), t.Namespaces.Network)
		setNamespace(s, specs.PIDNamespace, t.Config.PIDMode == taskconfig.ModeHost, t.Namespaces.PID)
		setNamespace(s, specs.IPCNamespace, t.Config.IPCMode == taskconfig.ModeHost, t.Namespaces.IPC)
		setNamespace(s, specs.CgroupNamespace, t.cgroupNSMode() == taskconfig.ModeHost, "")
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
		return taskconfig.ModePrivate
	}
	return taskconfig.ModeHost
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
