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

// leastMPSMilli is what eight multiprocessors are of an H100 or H200, the least that MPS was
// seen to give a program there.
const leastMPSMilli = 63

// TooLittleCompute says that programs get more than a compute that was asked for; empty for
// other computes, and for cards that were not seen.
func TooLittleCompute(model string, s Sharing, milli int64) string {
	if s != SharingMPS || model != "H100" && model != "H200" || milli <= 0 || milli >= leastMPSMilli {
		return ""
	}
	return fmt.Sprintf("%s of the compute is less than MPS can hold a program to: on an %s each has at least eight multiprocessors, about %s", FormatMilli(milli), model, FormatMilli(leastMPSMilli))
}
