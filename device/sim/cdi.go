// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"path/filepath"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// CDISpec makes the simulated device nodes and describes how a container gets
// them: one CDI device per GPU and per MIG instance, named by its UUID. A lost
// GPU cannot be described, as by NVIDIA's library.
func (m *Machine) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	dir := filepath.Join(filepath.Dir(m.hardware.path), "dev")
	if err := m.makeNodes(dir); err != nil {
		return nil, nil, err
	}
	spec, failed := &specs.Spec{Version: "0.5.0", Kind: kind}, map[string]error{}
	for _, n := range m.commonNodes(dir) {
		spec.ContainerEdits.DeviceNodes = append(spec.ContainerEdits.DeviceNodes, n.cdi())
	}
	for _, g := range m.gpus {
		edits := specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{m.gpuNode(dir, g.number).cdi()}}
		names := []string{g.uuid}
		for _, d := range g.migDevices() {
			names = append(names, d.uuid())
		}
		for _, name := range names {
			switch ret := g.failure("GetMinorNumber"); {
			case !slices.Contains(uuids, name):
			case ret != nvml.SUCCESS:
				failed[name] = ret
			default:
				spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: edits})
			}
		}
	}
	return spec, failed, nil
}

func (n node) cdi() *specs.DeviceNode {
	return &specs.DeviceNode{Path: n.container, HostPath: n.host, Type: "c",
		Major: int64(n.major), Minor: int64(n.minor), Permissions: "rw"}
}
