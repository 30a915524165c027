// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"regexp"
	"strconv"
)

// sold are the sizes of memory in GiB that cards are sold with.
var sold = []int64{2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288}

// Cards of up to so much keep ECC bits in their memory, and report a sixteenth less than their size (T4 15,360,
// L4 23,034, A40 46,068 MiB); drivers keep some of it too. Thousandths.
const (
	keepsECC         = 48
	shortfall        = 70
	shortfallWithout = 20
)

// NominalMiB is the memory that a card is sold with, which is what people ask for. No card reports more.
// Where its figure is near no such size, it is that in full GiB.
func NominalMiB(reported int64) int64 {
	for _, gib := range sold {
		less := int64(shortfall)
		if gib > keepsECC {
			less = shortfallWithout
		}
		if size := gib << 10; reported <= size && reported >= size-size*less/1000 {
			return size
		}
	}
	return (reported + 1023) >> 10 << 10
}

// sizeInName is a size of memory in a card's name. That of a Grace Hopper is its processor's.
var sizeInName = regexp.MustCompile(`\b([0-9]+)GB?\b`)

// ByName is the memory of a model of which no more is known than its name: as said of the
// model, and no more than the name says, since some models come in several sizes.
func ByName(model string, mib int64) int64 {
	if match := sizeInName.FindStringSubmatch(model); match != nil {
		if gib, err := strconv.ParseInt(match[1], 10, 64); err == nil {
			return min(mib, gib<<10)
		}
	}
	return mib
}
