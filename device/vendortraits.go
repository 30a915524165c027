package device

import "github.com/nomad-gpu/nomad-gpu/internal/gpu"

// vendorTraits are what a vendor's devices can, of what the configuration offers.
type vendorTraits struct {
	// slice and shared are what keeps tasks apart unless the operator says otherwise.
	slice, shared gpu.Sharing
	// parts is the mode of devices that are offered in parts.
	parts gpu.Mode
	// mixed says whether a device can have parts of several profiles at once.
	mixed bool
	// levels says whether the length of time slices can be set.
	levels bool
}

var vendors = map[string]vendorTraits{
	"nvidia": {slice: gpu.SharingMPS, shared: gpu.SharingTimeslice, parts: gpu.ModeMIG, mixed: true, levels: true},
	"amd":    {slice: gpu.SharingNone, shared: gpu.SharingTimeslice, parts: gpu.ModePartition},
	"intel":  {slice: gpu.SharingNone, shared: gpu.SharingTimeslice, parts: gpu.ModePartition},
	"huawei": {shared: gpu.SharingTimeslice, parts: gpu.ModePartition, mixed: true},
}

// fit makes a configuration one of the vendor's: what the operator left open is what
// the vendor has.
func (o sharingConfig) fit(vendor string) sharingConfig {
	t, known := vendors[vendor]
	switch {
	case !known:
	case o.Mode.InParts():
		o.Mode = t.parts
	case o.chosen:
	case o.Mode == gpu.ModeSlice:
		o.Mechanism = t.slice
	case o.Mode == gpu.ModeShared:
		o.Mechanism = t.shared
	}
	return o
}
