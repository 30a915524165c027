// SPDX-License-Identifier: MPL-2.0

// Package gpu tests on a machine with a real GPU what simulated hardware cannot
// show: that NVML is understood, and that MPS keeps tasks to their shares.
//
// Its test binary is a bundle of its own. It needs an NVIDIA driver and root,
// and no network, no compiler and nothing else of this repository:
//
//	make gpu-bundle                # anywhere; writes bin/gpu.test
//	sudo ./gpu.test -test.v        # on the machine with the GPU
//
// It changes no setting of the GPU. It starts an MPS control daemon with
// directories of its own and ends it. On a machine without a GPU, or without
// nvidia-cuda-mps-control, the tests skip and say why.
package gpu
