// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"slices"
	"strings"
)

// vendorSharings are the ways to keep tasks apart on a vendor's devices.
var vendorSharings = map[string][]Sharing{
	"nvidia": {SharingMPS, SharingTimeslice, SharingHAMi, SharingSuspend, SharingNone},
	"amd":    {SharingNone, SharingTimeslice, SharingDmem},
	"intel":  {SharingNone, SharingTimeslice, SharingDmem},
	"huawei": {SharingNone, SharingTimeslice},
}

// Sharings are the ways to keep tasks apart on a vendor's devices; none for an unknown one.
func Sharings(vendor string) []Sharing { return slices.Clone(vendorSharings[vendor]) }

// InSlices reports whether the memory of a vendor's devices can be counted in slices.
// Huawei's are divided by vNPUs alone.
func InSlices(vendor string) bool { return vendor != "huawei" }

// Unable says what of a request the vendor that it names cannot do, and what to write
// instead; empty where it can. sharing is the one that the task wants, or empty.
func (r Request) Unable(sharing Sharing) string {
	switch {
	case r.Vendor == "":
	case r.Kind != KindCount && !InSlices(r.Vendor):
		return fmt.Sprintf("%s: devices of %s are not cut into shares; write a count, such as \"1(%s)\", or a device block for one of its parts, such as device \"huawei/vnpu/vir10_3c_32g\"", r, r.Vendor, r.Vendor)
	case sharing != "" && !slices.Contains(vendorSharings[r.Vendor], sharing):
		names := make([]string, len(vendorSharings[r.Vendor]))
		for n, s := range vendorSharings[r.Vendor] {
			names[n] = string(s)
		}
		return fmt.Sprintf("gpu_sharing %q is not possible on devices of %s; write one of %s", sharing, r.Vendor, strings.Join(names, ", "))
	}
	return ""
}
