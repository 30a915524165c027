// SPDX-License-Identifier: MPL-2.0

package gpu

import "testing"

// What cards report of their memory, as read from nvidia-smi and rocm-smi, and what they are sold with.
func TestNominalMemory(t *testing.T) {
	for card, row := range map[string]struct{ reported, gib int64 }{
		"T4": {15_360, 16}, "T4, ECC off": {16_127, 16}, "P4": {7_611, 8}, "L4": {23_034, 24}, "A10": {23_028, 24}, "A10G": {23_028, 24}, "RTX A5000": {24_564, 24},
		"A40": {46_068, 48}, "L40S": {46_068, 48}, "RTX A6000": {49_140, 48}, "A16": {15_356, 16}, "V100": {16_160, 16}, "V100 32": {32_768, 32},
		"A30": {24_576, 24}, "A100 40": {40_960, 40}, "A100 80": {81_920, 80}, "H100": {81_559, 80}, "H100 NVL": {95_830, 94}, "GH200": {97_871, 96}, "H200": {143_771, 141},
		"B200": {183_359, 180}, "RTX PRO 6000": {97_887, 96}, "RTX 2080 Ti": {11_264, 11}, "RTX 3080": {10_240, 10}, "RTX 3080 12": {12_288, 12}, "RTX 4090": {24_564, 24},
		"RTX 5090": {32_607, 32}, "MI210": {65_520, 64}, "MI300X": {196_592, 192}, "MI325X": {262_128, 256}, "MI355X": {294_896, 288}, "no card": {27_000, 27}, "nothing": {0, 0},
	} {
		if got := NominalMiB(row.reported); got != row.gib<<10 {
			t.Errorf("%s: %d MiB are %d GiB, want %d", card, row.reported, got>>10, row.gib)
		}
	}
}

// A name that says less than what its model is said to have is believed.
func TestMemoryByName(t *testing.T) {
	for name, want := range map[string]int64{
		"Tesla V100-SXM2-16GB": 16, "Tesla V100-SXM2-32GB": 32, "Tesla V100": 32, "NVIDIA A100-SXM4-40GB": 32, "NVIDIA GH200 480GB": 32, "NVIDIA GH200 144G HBM3e": 32,
		"Tesla M40 24GB": 24, "A16GBX": 32,
	} {
		if got := ByName(name, 32<<10); got != want<<10 {
			t.Errorf("%s: %d MiB, want %d GiB", name, got, want)
		}
	}
	if got := ByName("NVIDIA A100-SXM4-40GB", 0); got != 0 {
		t.Errorf("of a model of which nothing is said: %d", got)
	}
}
