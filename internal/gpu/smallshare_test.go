// SPDX-License-Identifier: MPL-2.0

package gpu

import "testing"

func TestSharesTooSmallForMPS(t *testing.T) {
	for _, row := range []struct {
		vendor string
		s      Sharing
		mib    int64
		small  bool
	}{{"nvidia", SharingMPS, 512, true}, {"nvidia", SharingMPS, 575, true}, {"nvidia", SharingMPS, 576, false}, {"nvidia", SharingHAMi, 512, false}, {"amd", SharingMPS, 512, false}} {
		if text := TooSmallForMPS(row.vendor, row.s, row.mib); (text != "") != row.small {
			t.Errorf("%+v: %q", row, text)
		}
	}
}

func TestComputeTooLittleForMPS(t *testing.T) {
	for _, row := range []struct {
		model string
		s     Sharing
		milli int64
		small bool
	}{{"H100", SharingMPS, 62, true}, {"H200", SharingMPS, 1, true}, {"H100", SharingMPS, 63, false}, {"H100", SharingMPS, 0, false}, {"T4", SharingMPS, 30, false}, {"H100", SharingTimeslice, 30, false}} {
		if text := TooLittleCompute(row.model, row.s, row.milli); (text != "") != row.small {
			t.Errorf("%+v: %q", row, text)
		}
	}
}
