// SPDX-License-Identifier: MPL-2.0

package config

import "github.com/nomad-gpu/nomad-gpu/internal/gpu"

// Traits are what a vendor's devices can, of what the configuration offers.
type Traits struct {
	// slice and shared are what keeps tasks apart unless the operator says otherwise.
	slice, shared gpu.Sharing
	// Parts is the mode of devices that are offered in parts.
	Parts gpu.Mode
	// Mixed says whether a device can have parts of several profiles at once.
	Mixed bool
	// Levels says whether the length of time slices can be set.
	Levels bool
}

// Vendors are those whose devices the plugin knows.
var Vendors = map[string]Traits{
	"nvidia": {slice: gpu.SharingMPS, shared: gpu.SharingTimeslice, Parts: gpu.ModeMIG, Mixed: true, Levels: true},
	"amd":    {slice: gpu.SharingNone, shared: gpu.SharingTimeslice, Parts: gpu.ModePartition},
	"intel":  {slice: gpu.SharingNone, shared: gpu.SharingTimeslice, Parts: gpu.ModePartition},
	"huawei": {shared: gpu.SharingTimeslice, Parts: gpu.ModePartition, Mixed: true},
}
