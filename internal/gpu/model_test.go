// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestShortModel(t *testing.T) {
	for _, tc := range []struct{ model, want string }{
		{"NVIDIA H100 80GB HBM3", "H100"},
		{"NVIDIA H100 PCIe", "H100"},
		{"NVIDIA H200", "H200"},
		{"NVIDIA B200", "B200"},
		{"NVIDIA GB10", "GB10"},
		{"NVIDIA GB200", "GB200"},
		{"NVIDIA A100-SXM4-40GB", "A100"},
		{"NVIDIA-A100-PCIE-40GB", "A100"}, // a label of Kubernetes, not a name that NVML gives
		{"Tesla V100-SXM2-32GB", "V100"},
		{"Tesla T4", "T4"},
		{"NVIDIA GeForce RTX 3090", "RTX3090"},
		{"NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiSUPER"},
		{"NVIDIA RTX A6000", "A6000"},
		{"Intel Data Center GPU Flex 170", "Flex170"},
		{"Intel Data Center GPU Max 1550", "Max1550"},
		{"Intel Arc A770", "A770"},
		{"Intel Arc Pro B60", "B60"},
		{"AMD Instinct MI300X OAM", "MI300X"},
		{"Huawei Ascend 910B", "910B"},
		{"NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"},
		{"Quadro RTX 5000", "RTX5000"},
		{"NVIDIA L40S", "L40S"},
		{"NVIDIA GH200 480GB", "GH200"},
		{"GRID A100-10C", "A100-10C"},
		{"NVIDIA TITAN V", "TITANV"},
		{"NVIDIA TITAN RTX", "TITANRTX"},
		{"AMD Instinct MI300X", "MI300X"},
		{"MI250", "MI250"},
		{"RTX", "RTX"},
		{"NVIDIA", "NVIDIA"},
		{"", "unknown"},
	} {
		if got := ShortModel(tc.model); got != tc.want {
			t.Errorf("ShortModel(%q) = %q, want %q", tc.model, got, tc.want)
		}
	}
}

// Names of real cards, with their memory in GB: two with different memory share no name, but
// for those of data centers that people say without it.
func TestShortModelsOfRealCards(t *testing.T) {
	sizes := []string{"V100", "P100", "M40", "A100", "A800", "H100", "H20", "GH200", "MI50"}
	text, err := os.ReadFile("testdata/models.txt")
	if err != nil {
		t.Fatal(err)
	}
	memory := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 {
			t.Fatalf("%q: want memory, name and short name", line)
		}
		got := ShortModel(fields[1])
		if got != fields[2] {
			t.Errorf("ShortModel(%q) = %q, want %q", fields[1], got, fields[2])
		}
		if other := memory[got]; other != "" && other != fields[0] && !slices.Contains(sizes, got) {
			t.Errorf("%q is %q, of which another has %s GB instead of %s", fields[1], got, other, fields[0])
		}
		memory[got] = fields[0]
		if r, err := ParseRequest("1(" + got + ")"); err != nil || r.Model != got {
			t.Errorf("a request cannot name %q: %v", got, err)
		}
	}
}
