// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// returnError is a return code as an error.
type returnError nvml.Return

// Error names the code without asking the library, which may be gone.
func (r returnError) Error() string { return describe(nvml.Return(r)) }

var returnNames = map[nvml.Return]string{
	nvml.SUCCESS:                       "success",
	nvml.ERROR_UNINITIALIZED:           "not initialized",
	nvml.ERROR_INVALID_ARGUMENT:        "invalid argument",
	nvml.ERROR_NOT_SUPPORTED:           "not supported",
	nvml.ERROR_NO_PERMISSION:           "no permission",
	nvml.ERROR_NOT_FOUND:               "not found",
	nvml.ERROR_INSUFFICIENT_POWER:      "a power cable is not attached",
	nvml.ERROR_DRIVER_NOT_LOADED:       "the NVIDIA driver is not loaded",
	nvml.ERROR_TIMEOUT:                 "timeout",
	nvml.ERROR_IRQ_ISSUE:               "the kernel found an interrupt issue with the GPU",
	nvml.ERROR_LIBRARY_NOT_FOUND:       "libnvidia-ml.so.1 is not found",
	nvml.ERROR_FUNCTION_NOT_FOUND:      "the driver is too old for this call",
	nvml.ERROR_CORRUPTED_INFOROM:       "the GPU's infoROM is corrupted",
	nvml.ERROR_GPU_IS_LOST:             "the GPU has fallen off the bus",
	nvml.ERROR_RESET_REQUIRED:          "the GPU needs a reset",
	nvml.ERROR_OPERATING_SYSTEM:        "the operating system refuses the GPU",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the driver and its library have different versions",
	nvml.ERROR_IN_USE:                  "the GPU is in use",
	nvml.ERROR_MEMORY:                  "out of memory",
	nvml.ERROR_GPU_NOT_FOUND:           "no GPU is found",
	nvml.ERROR_INSUFFICIENT_RESOURCES:  "no room",
	nvml.ERROR_UNKNOWN:                 "unknown error",
}

func describe(ret nvml.Return) string {
	if name, ok := returnNames[ret]; ok {
		return name
	}
	return fmt.Sprintf("NVML return code %d", int32(ret))
}

// problemOf makes a problem of a call that failed.
func problemOf(ret nvml.Return, doing string) hardware.Problem {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return hardware.Problem{Code: hardware.CodeLost, Fatal: true, Message: "the GPU has fallen off the bus",
			Action: "drain the node and power-cycle it; if it happens again, replace the GPU"}
	case nvml.ERROR_RESET_REQUIRED:
		return hardware.Problem{Code: "reset-required", Fatal: true, Message: "the GPU needs a reset",
			Action: "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset), or reboot the node"}
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		// Any call can be the first that meets it.
		return mismatched()
	default:
		return hardware.Problem{Code: "nvml-error", Message: fmt.Sprintf("NVML failed (%s): %s", doing, describe(ret)),
			Action: "look for NVRM lines in the kernel log; it is healthy again when NVML answers"}
	}
}

// hanging is the problem of a call that has not come back. It is tentative: on a busy
// machine an answer takes long.
func hanging(what string) hardware.Problem {
	return hardware.Problem{Code: "nvml-timeout", Tentative: true, Message: "NVML does not answer for this " + what,
		Action: "look for NVRM lines in the kernel log; it is healthy again when NVML answers, else reboot the node"}
}

// recoveryActions are NVML's words for what a GPU needs, in order of its numbers.
var recoveryActions = []hardware.Problem{
	{},
	{Code: "recovery-gpu-reset", Fatal: true, Message: "the driver asks for a reset of the GPU", Action: "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset)"},
	{Code: "recovery-node-reboot", Fatal: true, Message: "the driver asks for a reboot of the node", Action: "drain the node and reboot it"},
	{Code: "recovery-drain-p2p", Message: "the driver asks to end peer-to-peer traffic with the GPU", Action: "stop tasks that use several GPUs, then run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset)"},
	{Code: "recovery-drain-and-reset", Fatal: true, Message: "the driver asks for a drain and a reset of the GPU", Action: "stop its tasks, then run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset)"},
	{Code: "recovery-imex-domain", Message: "the driver asks for a recovery of the IMEX domain", Action: "restart nvidia-imex on the nodes of the domain"},
	{Code: "recovery-bus-reset", Fatal: true, Message: "the driver asks for a reset of the GPU's bus", Action: "drain the node and reset the bus, or reboot"},
	{Code: "recovery-system-reboot", Fatal: true, Message: "the driver asks for a reboot of the system", Action: "drain the node and power-cycle it"},
}

// health asks a GPU for the faults that it knows of.
func health(d nvml.Device) []hardware.Problem {
	var problems []hardware.Problem
	if action, known := recoveryAction(d); known && action != 0 {
		p := hardware.Problem{Code: "recovery-unknown", Message: fmt.Sprintf("the driver asks for recovery action %d", action),
			Action: "look it up in NVIDIA's documentation of the driver"}
		if action < uint64(len(recoveryActions)) {
			p = recoveryActions[action]
		}
		problems = append(problems, p)
	}
	return append(problems, memoryHealth(d)...)
}

// memoryHealth reads the remapping of broken rows, and the error counters of
// GPUs that cannot remap.
func memoryHealth(d nvml.Device) []hardware.Problem {
	_, _, pending, failed, ret := d.GetRemappedRows()
	switch {
	case ret == nvml.SUCCESS && failed:
		return []hardware.Problem{{Code: "ecc-remap-failed", Message: "a broken row of memory could not be remapped", Action: "replace the GPU"}}
	case ret == nvml.SUCCESS && pending:
		return []hardware.Problem{{Code: "ecc-remap-pending", Message: "a broken row of memory waits to be remapped", Action: "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset)"}}
	case ret == nvml.SUCCESS:
		return nil
	}
	if state, ret := d.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
		return []hardware.Problem{{Code: "ecc-retirement-pending", Message: "a broken page of memory waits to be retired", Action: "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset)"}}
	}
	count, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	if ret != nvml.SUCCESS || count == 0 {
		return nil
	}
	return []hardware.Problem{{Code: "ecc-uncorrected", Message: "the memory had uncorrected errors since the driver was loaded",
		Action: "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset); if it happens again, replace the GPU"}}
}

// recoveryAction reads NVML's field; older drivers and GPUs do not have it.
func recoveryAction(d nvml.Device) (uint64, bool) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if d.GetFieldValues(values) != nvml.SUCCESS || values[0].NvmlReturn != uint32(nvml.SUCCESS) {
		return 0, false
	}
	if values[0].ValueType == uint32(nvml.VALUE_TYPE_UNSIGNED_INT) {
		return uint64(binary.NativeEndian.Uint32(values[0].Value[:4])), true
	}
	return binary.NativeEndian.Uint64(values[0].Value[:]), true
}
