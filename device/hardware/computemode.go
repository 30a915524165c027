// SPDX-License-Identifier: MPL-2.0

package hardware

// ComputeMode says which programs a device lets in, in nvidia-smi's words.
type ComputeMode string

const (
	// ComputeDefault lets every program in.
	ComputeDefault ComputeMode = "DEFAULT"
	// ComputeExclusive lets in one process: the MPS server, where there is one. Its
	// clients do not count.
	ComputeExclusive ComputeMode = "EXCLUSIVE_PROCESS"
	// ComputeProhibited lets none in.
	ComputeProhibited ComputeMode = "PROHIBITED"
)
