// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func ociMount(m taskconfig.Mount) specs.Mount {
	return specs.Mount{Type: m.Type, Source: m.Source, Destination: m.Target, Options: slices.Clone(m.Options)}
}

// rootPropagation is what a container's mount namespace must let through, for all
// of its mounts. The kernel cuts off a mount when the root above it is cut off.
func rootPropagation(mounts []taskconfig.Mount) string {
	var options []string
	for _, m := range mounts {
		options = append(options, m.Options...)
	}
	return taskconfig.PropagationOf(options)
}
