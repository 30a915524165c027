// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Node describes a device node for containers, which see it below /dev. Its group
// on the host is returned too: who is not root there is let in by it.
func (t Tree) Node(name string) (*specs.DeviceNode, uint32, error) {
	host := t.Path("dev", name)
	var info unix.Stat_t
	if err := unix.Stat(host, &info); err != nil {
		return nil, 0, fmt.Errorf("device node %s: %w", host, err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil, 0, fmt.Errorf("%s is not a device node", host)
	}
	return &specs.DeviceNode{Path: "/dev/" + name, HostPath: host, Type: "c", Major: int64(unix.Major(info.Rdev)),
		Minor: int64(unix.Minor(info.Rdev)), Permissions: "rw"}, info.Gid, nil
}

// Edits give a container some device nodes, and the groups that own them.
func (t Tree) Edits(names ...string) (specs.ContainerEdits, error) {
	var edits specs.ContainerEdits
	for _, name := range names {
		node, group, err := t.Node(name)
		if err != nil {
			return edits, err
		}
		edits.DeviceNodes = append(edits.DeviceNodes, node)
		if group != 0 && !slices.Contains(edits.AdditionalGIDs, group) {
			edits.AdditionalGIDs = append(edits.AdditionalGIDs, group)
		}
	}
	return edits, nil
}

// CDIVersion is that of specs with groups in them.
const CDIVersion = "0.7.0"

// Spec describes devices, named by UUID, for containers: what all of them need, and
// what each has of its own. failed are those that cannot be described, with the
// reason; where none can, that is an error.
func Spec(kind string, common specs.ContainerEdits, uuids []string, edits func(uuid string) (specs.ContainerEdits, error)) (spec *specs.Spec, failed map[string]error, err error) {
	spec, failed = &specs.Spec{Version: CDIVersion, Kind: kind, ContainerEdits: common}, map[string]error{}
	for _, uuid := range uuids {
		own, err := edits(uuid)
		if err != nil {
			failed[uuid] = fmt.Errorf("describe it for containers: %w", err)
			continue
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: uuid, ContainerEdits: own})
	}
	if len(spec.Devices) == 0 {
		for _, err := range failed {
			return nil, failed, fmt.Errorf("generate CDI spec: %w", err)
		}
		return nil, nil, errors.New("generate CDI spec: no device was found")
	}
	return spec, failed, nil
}

// ErrNotThere means that a device has gone since it was asked for.
var ErrNotThere = errors.New("it is not there")

// RenderNode is the only render node of a CDI device, such as "renderD128"; "" where
// there is none or several, as with a device that stands for all.
func RenderNode(d specs.Device) string {
	render := ""
	for _, n := range d.ContainerEdits.DeviceNodes {
		if name := path.Base(n.Path); strings.HasPrefix(name, "renderD") {
			if render != "" {
				return ""
			}
			render = name
		}
	}
	return render
}

// CheckCDI reports faults of a spec on this machine: device nodes and mounts
// that are gone, and what a device cannot do without, by the names of nodes as
// patterns. Names are those of some of its devices.
func CheckCDI(s *specs.Spec, names []string, needed ...string) error {
	edits := []specs.ContainerEdits{s.ContainerEdits}
	for _, d := range s.Devices {
		if slices.Contains(names, d.Name) {
			edits = append(edits, d.ContainerEdits)
		}
	}
	have := map[string]bool{}
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			host := cmp.Or(n.HostPath, n.Path)
			info, err := os.Stat(host)
			switch {
			case err != nil:
				return fmt.Errorf("device node %s, which containers are to get, is gone", host)
			case info.Mode()&os.ModeCharDevice == 0:
				return fmt.Errorf("%s, which containers are to get as a device node, is not one", host)
			}
			for _, pattern := range needed {
				if ok, _ := filepath.Match(pattern, n.Path); ok {
					have[pattern] = true
				}
			}
		}
		for _, m := range e.Mounts {
			if _, err := os.Stat(m.HostPath); err != nil {
				return fmt.Errorf("%s, which containers are to get, is gone", m.HostPath)
			}
		}
	}
	for _, pattern := range needed {
		if !have[pattern] && len(names) > 0 {
			return fmt.Errorf("it has no device node %s, without which no program works", pattern)
		}
	}
	return nil
}
