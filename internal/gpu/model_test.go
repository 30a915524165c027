package gpu

import "testing"

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
		{"GRID A100-10C", "A100"},
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
