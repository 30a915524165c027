// SPDX-License-Identifier: MPL-2.0

package ascend

import (
	"fmt"
	"path"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// node is the device node, below /dev.
func (s seen) node() string {
	if s.vnpu > 0 {
		return fmt.Sprintf("vdavinci%d", s.vnpu)
	}
	return fmt.Sprintf("davinci%d", s.physical)
}

// manager is the node without which nothing works, and others those that some drivers have
// beside it.
const manager = "davinci_manager"

var others = []string{"devmm_svm", "hisi_hdc"}

// CDISpec describes devices and vNPUs, named by UUID: the node of that device only, with
// the manager nodes and the driver's files, which all need.
func (b *Backend) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	b.refresh()
	nodes := []string{manager}
	for _, name := range others {
		if b.tree.Has("dev", name) {
			nodes = append(nodes, name)
		}
	}
	common, err := b.tree.Edits(nodes...)
	if err != nil {
		return nil, nil, fmt.Errorf("generate CDI spec: %w", err)
	}
	common.Mounts = b.mounts()
	return sysfs.Spec(kind, common, uuids, b.edits)
}

// edits are the node of one device or vNPU. Programs count by the names of nodes: that of
// a vNPU is called in the container as a device's is.
func (b *Backend) edits(uuid string) (specs.ContainerEdits, error) {
	s, found := b.found.Lookup(uuid)
	if !found {
		return specs.ContainerEdits{}, sysfs.ErrNotThere
	}
	edits, err := b.tree.Edits(s.node())
	if err == nil && s.vnpu > 0 {
		edits.DeviceNodes[0].Path = fmt.Sprintf("/dev/davinci%d", s.vnpu)
	}
	return edits, err
}

// mounts are the files of the driver that programs need in a container, as far as they
// are there. They are for reading.
func (b *Backend) mounts() []*specs.Mount {
	driver := b.driverDir()
	var all []*specs.Mount
	for _, file := range []string{path.Join(driver, "lib64"), path.Join(driver, "tools"), path.Join(driver, "version.info"),
		"/usr/local/dcmi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/etc/ascend_install.info"} {
		if b.tree.Has(file) {
			all = append(all, &specs.Mount{HostPath: b.tree.Path(file), ContainerPath: file, Options: []string{"ro", "nosuid", "nodev", "bind"}})
		}
	}
	return all
}

// CheckCDI reports faults of a spec on this machine.
func (b *Backend) CheckCDI(s *specs.Spec, names []string) error {
	return sysfs.CheckCDI(s, names, "/dev/"+manager, "/dev/davinci[0-9]*")
}

// Stands finds the device of an operator's CDI device by its node on the host.
func (b *Backend) Stands(d specs.Device) string {
	name := ""
	for _, n := range d.ContainerEdits.DeviceNodes {
		host := path.Base(n.Path)
		if n.HostPath != "" {
			host = path.Base(n.HostPath)
		}
		if !strings.HasPrefix(strings.TrimPrefix(host, "v"), "davinci") || host == manager {
			continue
		}
		if name != "" {
			return "" // it stands for several
		}
		name = host
	}
	return b.found.First(func(s seen) bool { return name != "" && name == s.node() })
}
