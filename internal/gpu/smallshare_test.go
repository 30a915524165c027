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
