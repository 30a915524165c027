// SPDX-License-Identifier: MPL-2.0

package framework

// pytorchAllocator are the settings of PyTorch's caching allocator. The limit
// itself is applied by the helper; garbage collection starts before it is
// reached. Expandable segments return memory to the device, which is what
// Dynamic promises.
var pytorchAllocator = map[Memory]string{
	Conservative: "garbage_collection_threshold:0.8,max_split_size_mb:128",
	Aggressive:   "garbage_collection_threshold:0.95",
	Dynamic:      "expandable_segments:True",
}

// pytorchSettings are the variables by which builds for each vendor's devices take these
// settings, and the devices' name in a program. Builds for Intel's take none yet.
var pytorchSettings = map[string]struct{ variable, device string }{
	nvidia:   {"PYTORCH_CUDA_ALLOC_CONF", "cuda"},
	"amd":    {"PYTORCH_HIP_ALLOC_CONF", "cuda"},
	"intel":  {"", "xpu"},
	"huawei": {"PYTORCH_NPU_ALLOC_CONF", "npu"},
}

const nvidia = "nvidia"

func pytorch(setup *Setup, o Options, s Share) {
	settings, known := pytorchSettings[s.Vendor]
	if !known {
		settings = pytorchSettings[nvidia]
	}
	if settings.variable != "" {
		setup.Env[settings.variable] = pytorchAllocator[o.Memory]
	}
	if !o.MixedPrecision {
		return
	}
	precision := s.precision()
	setup.Env[EnvPrecision] = precision
	// Hugging Face Accelerate and Lightning read these; plain PyTorch has no
	// switch outside the program.
	setup.Env["ACCELERATE_MIXED_PRECISION"] = precision
	setup.Env["PL_TRAINER_PRECISION"] = lightningPrecision[precision]
	if precision == bf16 && settings == pytorchSettings[nvidia] {
		setup.Env["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "1"
	}
	setup.Notes = append(setup.Notes, "mixed precision: Accelerate and Lightning follow the environment; "+
		"a plain PyTorch program wraps its steps in torch.autocast(\""+settings.device+"\", dtype=torch."+torchDtype[precision]+")")
}

const (
	bf16 = "bf16"
	fp16 = "fp16"
)

var (
	lightningPrecision = map[string]string{bf16: "bf16-mixed", fp16: "16-mixed"}
	torchDtype         = map[string]string{bf16: "bfloat16", fp16: "float16"}
)

// bfloat16Types are the GPUs that compute in bfloat16 (Ampere and later); every
// other GPU, and an unknown one, gets float16, which all of them can do.
var bfloat16Types = map[string]bool{
	"A100": true, "A30": true, "A40": true, "A10": true, "A16": true, "A2": true, "A6000": true,
	"L4": true, "L40": true, "L40S": true, "H100": true, "H200": true, "H20": true, "GH200": true,
	"B100": true, "B200": true, "B300": true, "GB200": true,
	"MI210": true, "MI250": true, "MI250X": true, "MI300A": true, "MI300X": true, "MI308X": true, "MI325X": true, "MI350X": true, "MI355X": true,
	"910B1": true, "910B2": true, "910B3": true, "910B4": true,
	"RTX3090": true, "RTX4090": true, "RTX5090": true,
}

func (s Share) precision() string {
	switch {
	case s.Precision != "":
		return s.Precision
	case bfloat16Types[s.Type]:
		return bf16
	}
	return fp16
}
