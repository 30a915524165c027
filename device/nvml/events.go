package nvml

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// waitMilliseconds is how long one wait for events lasts: the longest that the
// end of a watch can take.
const waitMilliseconds = 1000

// Watch reports the XIDs of the GPUs until the context ends or NVML fails. A GPU
// that does not support events is left out.
func (b *Backend) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	if err := b.open(); err != nil {
		return err
	}
	set, ret := b.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("create NVML event set: %w", returnError(ret))
	}
	defer set.Free()
	for _, uuid := range uuids {
		if _, err := on(b, uuid, uuid, func(d nvml.Device) nvml.Return {
			return d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		}); err != nil {
			continue
		}
	}
	for ctx.Err() == nil {
		data, ret := set.Wait(waitMilliseconds)
		switch ret {
		case nvml.SUCCESS:
			emit(event(data))
		case nvml.ERROR_TIMEOUT:
		default:
			return fmt.Errorf("wait for NVML events: %w", returnError(ret))
		}
	}
	return ctx.Err()
}

// event translates NVML's event. On a GPU with MIG the device is the parent's.
func event(data nvml.EventData) hardware.Event {
	e := hardware.Event{XID: data.EventData}
	if data.Device != nil {
		if uuid, ret := data.Device.GetUUID(); ret == nvml.SUCCESS {
			e.UUID = uuid
		}
	}
	return e
}
