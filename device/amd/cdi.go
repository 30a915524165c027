// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"fmt"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// CDISpec describes GPUs and partitions, named by UUID: /dev/kfd, which all share, and
// the card and render nodes of that device only.
func (b *Backend) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	b.refresh()
	common, err := b.tree.Edits("kfd")
	if err != nil {
		return nil, nil, fmt.Errorf("generate CDI spec: %w", err)
	}
	return sysfs.Spec(kind, common, uuids, b.edits)
}

// edits are the nodes of one GPU or partition. A card node is for displays, and not
// every device has one.
func (b *Backend) edits(uuid string) (specs.ContainerEdits, error) {
	s, found := b.found.Lookup(uuid)
	if !found {
		return specs.ContainerEdits{}, sysfs.ErrNotThere
	}
	render := fmt.Sprintf("renderD%d", s.card.first().renderMinor)
	names := []string{"dri/" + render}
	if card := b.cardOf(render); card != "" && b.tree.Has("dev/dri", card) {
		names = append(names, "dri/"+card)
	}
	return b.tree.Edits(names...)
}

// cardOf finds the card node that goes with a render node.
func (b *Backend) cardOf(render string) string {
	for _, name := range b.tree.Names("sys/class/drm", render, "device/drm") {
		if strings.HasPrefix(name, "card") {
			return name
		}
	}
	return ""
}

// CheckCDI reports faults of a spec on this machine.
func (b *Backend) CheckCDI(s *specs.Spec, names []string) error {
	return sysfs.CheckCDI(s, names, "/dev/kfd", "/dev/dri/renderD*")
}

// Stands finds the device of an operator's CDI device by its render node: AMD's tool
// names them by position.
func (b *Backend) Stands(d specs.Device) string {
	render := sysfs.RenderNode(d)
	return b.found.First(func(s seen) bool {
		// A card with partitions stands for none of them.
		return render == fmt.Sprintf("renderD%d", s.card.first().renderMinor) && (s.partition || len(s.card.nodes) == 1)
	})
}
