// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// sliceSeparator stands between a device's UUID and a slice's number. No UUID
// of any vendor contains it.
const sliceSeparator = "::"

// SliceID names one slice, or one replica, of a device: "<uuid>::<n>" with n from
// 0. It is the ID of a Nomad device instance.
type SliceID struct {
	UUID string
	N    int
}

// String returns the ID as Nomad knows it.
func (id SliceID) String() string {
	return id.UUID + sliceSeparator + strconv.Itoa(id.N)
}

// ParseSliceID reads an instance ID. The second result is false when the ID
// has no slice number and therefore names a whole device. An ID that looks like
// a slice but is none is an error.
func ParseSliceID(s string) (SliceID, bool, error) {
	uuid, number, found := strings.Cut(s, sliceSeparator)
	if uuid == "" {
		return SliceID{}, false, fmt.Errorf("instance ID %q has no device UUID", s)
	}
	if !found {
		return SliceID{UUID: uuid}, false, nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || strconv.Itoa(n) != number {
		return SliceID{}, false, fmt.Errorf("instance ID %q: slice %q is not a number from 0", s, number)
	}
	return SliceID{UUID: uuid, N: n}, true, nil
}
