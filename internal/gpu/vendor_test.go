// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"strings"
	"testing"
)

func TestWhatAVendorCannotDoIsSaid(t *testing.T) {
	for _, tc := range []struct {
		request string
		sharing Sharing
		says    string
	}{
		{"1(huawei)", "", ""},
		{"2(huawei,910B3)", SharingTimeslice, ""},
		{"0.5(huawei)", "", `write a count, such as "1(huawei)"`},
		{"8G,0.5(huawei,910B3)", "", "8G,0.5(huawei,910B3): devices of huawei are not cut into shares"},
		{"0.5(amd)", SharingDmem, ""},
		{"0.5(amd)", SharingMPS, `gpu_sharing "mps" is not possible on devices of amd; write one of none, timeslice, dmem`},
		{"8G(intel)", SharingHAMi, `gpu_sharing "hami" is not possible on devices of intel`},
		{"8G(nvidia)", SharingHAMi, ""},
		{"0.5(nvidia,H100)", SharingDmem, "write one of mps, timeslice, hami, suspend, none"},
		{"0.5", SharingDmem, ""},
	} {
		r, err := ParseRequest(tc.request)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Unable(tc.sharing); (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
			t.Errorf("%s with %q: %q", tc.request, tc.sharing, got)
		}
	}
}
