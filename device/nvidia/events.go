// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// longestWait is how long one wait for events lasts at most: the longest that
// the end of a watch can take.
const longestWait = time.Second

// kinds are the events that tell of a device's health. Most are only a reason to
// look: the survey sees what came of them.
var kinds = []struct {
	kind    uint64
	name    string
	problem hardware.Problem
}{
	{kind: nvml.EventTypeXidCriticalError, name: "XID"},
	{kind: nvml.EventTypeDoubleBitEccError, name: "uncorrected ECC error"},
	{kind: nvml.EventTypeDramRetirementEvent, name: "retirement of memory"},
	{kind: nvml.EventTypeDramRetirementFailure, name: "failed retirement of memory"},
	{kind: nvml.EventTypeNonFatalPoisonError, name: "contained memory poison"},
	{kind: nvml.EventTypeFatalPoisonError, name: "memory poison", problem: hardware.Problem{
		Code: hardware.EventCode + "memory-poison", Fatal: true, Message: "the driver reported poisoned memory that it could not contain",
		Action: "stop its tasks and run nomad-device-gpu release -reset UUID (nvidia-smi --gpu-reset); it is healthy again when the reset is verified"}},
	{kind: nvml.EventTypeGpuUnavailableError, name: "GPU unavailable", problem: hardware.Problem{
		Code: hardware.EventCode + "gpu-unavailable", Fatal: true, Message: "the driver reported that the GPU is unavailable",
		Action: "look for NVRM lines in the kernel log; it is healthy again when a CUDA program works, else reboot the node"}},
	{kind: nvml.EventTypeGpuRecoveryAction, name: "change of the recovery action"},
	{kind: nvml.EventMigConfigChange, name: "change of the MIG instances"},
}

// Watch reports what the GPUs tell of their health until the context ends or
// NVML fails. A GPU that does not support events is left out.
func (b *Backend) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	if err := b.open(); err != nil {
		return err
	}
	created, err := guard.Call(b.guard, "events", func() created {
		set, ret := b.lib.EventSetCreate()
		return created{set, ret}
	})
	if err != nil {
		return fmt.Errorf("create NVML event set: %w", err)
	}
	if created.ret != nvml.SUCCESS {
		return fmt.Errorf("create NVML event set: %w", returnError(created.ret))
	}
	for _, uuid := range uuids {
		// An error is left to the survey, which reports the GPU's faults.
		_, _ = on(b, uuid, uuid, func(d nvml.Device) nvml.Return { return register(d, created.set) })
	}
	err = b.listen(ctx, created.set, emit)
	if !errors.Is(err, guard.ErrHangs) {
		created.set.Free() // not under a call that is still out
	}
	return err
}

// register asks for the events that the GPU knows: NVML refuses all where it
// does not know one.
func register(d nvml.Device, set nvml.EventSet) nvml.Return {
	supported, ret := d.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		supported = nvml.EventTypeXidCriticalError
	}
	wanted := uint64(0)
	for _, k := range kinds {
		wanted |= k.kind & supported
	}
	return d.RegisterEvents(wanted, set)
}

type created struct {
	set nvml.EventSet
	ret nvml.Return
}

// received is the outcome of one wait.
type received struct {
	data nvml.EventData
	ret  nvml.Return
}

func (b *Backend) listen(ctx context.Context, set nvml.EventSet, emit func(hardware.Event)) error {
	wait := min(longestWait, b.guard.Timeout/2)
	for ctx.Err() == nil {
		b.gate.RLock()
		// An answer that is given up may have been an XID.
		r, err := guard.CallFor(b.guard, "events", hardware.HangTimeouts*b.guard.Timeout, func() received {
			data, ret := set.Wait(uint32(wait.Milliseconds()))
			return received{data, ret}
		})
		b.gate.RUnlock()
		switch {
		case err != nil:
			return fmt.Errorf("wait for NVML events: %w", err)
		case r.ret == nvml.SUCCESS:
			emit(event(r.data))
		case r.ret != nvml.ERROR_TIMEOUT:
			return fmt.Errorf("wait for NVML events: %w", returnError(r.ret))
		}
	}
	return ctx.Err()
}

// number is that of a MIG instance: NVML writes all ones for none.
func number(id uint32) int {
	if id == ^uint32(0) {
		return hardware.Absent
	}
	return int(id)
}

// event translates NVML's event. On a GPU with MIG the device is the parent's.
func event(data nvml.EventData) hardware.Event {
	e := hardware.Event{GI: number(data.GpuInstanceId), CI: number(data.ComputeInstanceId), Name: fmt.Sprintf("event of type %#x", data.EventType)}
	for _, k := range kinds {
		if k.kind == data.EventType {
			e.Name, e.Problem = k.name, k.problem
		}
	}
	if data.EventType == nvml.EventTypeXidCriticalError {
		e.XID = data.EventData
	}
	if data.Device != nil {
		if uuid, ret := data.Device.GetUUID(); ret == nvml.SUCCESS {
			e.UUID = uuid
		}
	}
	return e
}
