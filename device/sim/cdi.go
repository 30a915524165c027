package sim

import (
	"path/filepath"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// CDISpec makes the simulated device nodes and describes how a container gets
// them: one CDI device per GPU and per MIG instance, named by its UUID.
func (m *Machine) CDISpec(kind string) (*specs.Spec, error) {
	dir := filepath.Join(filepath.Dir(m.hardware.path), "dev")
	if err := m.makeNodes(dir); err != nil {
		return nil, err
	}
	spec := &specs.Spec{Version: "0.5.0", Kind: kind}
	for _, n := range m.commonNodes(dir) {
		spec.ContainerEdits.DeviceNodes = append(spec.ContainerEdits.DeviceNodes, n.cdi())
	}
	for _, g := range m.gpus {
		edits := specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{m.gpuNode(dir, g.number).cdi()}}
		spec.Devices = append(spec.Devices, specs.Device{Name: g.uuid, ContainerEdits: edits})
		for _, d := range g.migDevices() {
			spec.Devices = append(spec.Devices, specs.Device{Name: d.uuid(), ContainerEdits: edits})
		}
	}
	return spec, nil
}

func (n node) cdi() *specs.DeviceNode {
	return &specs.DeviceNode{Path: n.container, HostPath: n.host, Type: "c",
		Major: int64(n.major), Minor: int64(n.minor), Permissions: "rw"}
}
