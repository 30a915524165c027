// SPDX-License-Identifier: MPL-2.0

package gpu

import "fmt"

// leastMPSMemoryMiB is what a program under NVIDIA's MPS needs: its context takes 516 MiB of
// the limit on an H100 and an H200 with driver 580, and below 576 MiB none starts.
const leastMPSMemoryMiB = 576

// TooSmallForMPS names the fault of a share of memory under MPS in which no CUDA program
// starts; empty for other shares.
func TooSmallForMPS(vendor string, s Sharing, memoryMiB int64) string {
	if vendor != "nvidia" || s != SharingMPS || memoryMiB >= leastMPSMemoryMiB {
		return ""
	}
	return fmt.Sprintf("%d MiB are too little for a CUDA program under MPS, whose context alone takes about 520 MiB (%d MiB at least)", memoryMiB, leastMPSMemoryMiB)
}
