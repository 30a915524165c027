// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

var computeModes = map[hardware.ComputeMode]nvml.ComputeMode{
	hardware.ComputeDefault:    nvml.COMPUTEMODE_DEFAULT,
	hardware.ComputeExclusive:  nvml.COMPUTEMODE_EXCLUSIVE_PROCESS,
	hardware.ComputeProhibited: nvml.COMPUTEMODE_PROHIBITED,
}

// ComputeMode reads the mode of a GPU, or of a MIG instance of it.
func (b *Backend) ComputeMode(owner, uuid string) (hardware.ComputeMode, error) {
	type outcome struct {
		mode nvml.ComputeMode
		ret  nvml.Return
	}
	o, err := on(b, owner, uuid, func(d nvml.Device) outcome {
		mode, ret := d.GetComputeMode()
		return outcome{mode, ret}
	})
	if err != nil {
		return "", err
	}
	if o.ret != nvml.SUCCESS {
		return "", fmt.Errorf("read the compute mode of %s: %w", uuid, returnError(o.ret))
	}
	if o.mode == nvml.COMPUTEMODE_EXCLUSIVE_THREAD {
		return hardware.ComputeExclusive, nil // what drivers made of it long ago
	}
	for name, mode := range computeModes {
		if mode == o.mode {
			return name, nil
		}
	}
	return "", fmt.Errorf("read the compute mode of %s: %d is not a mode", uuid, o.mode)
}

// SetComputeMode sets it, for programs that come from now on.
func (b *Backend) SetComputeMode(owner, uuid string, mode hardware.ComputeMode) error {
	number, known := computeModes[mode]
	if !known {
		return fmt.Errorf("set the compute mode of %s: %q is not a mode", uuid, mode)
	}
	ret, err := on(b, owner, uuid, func(d nvml.Device) nvml.Return { return d.SetComputeMode(number) })
	if err != nil {
		return err
	}
	if ret != nvml.SUCCESS {
		return fmt.Errorf("set the compute mode of %s to %s: %w", uuid, mode, returnError(ret))
	}
	return nil
}
