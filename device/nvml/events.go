package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// longestWait is how long one wait for events lasts at most: the longest that
// the end of a watch can take.
const longestWait = time.Second

// Watch reports the XIDs of the GPUs until the context ends or NVML fails. A GPU
// that does not support events is left out.
func (b *Backend) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	if err := b.open(); err != nil {
		return err
	}
	created, err := call(b.guard, "events", func() created {
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
		_, err := on(b, uuid, uuid, func(d nvml.Device) nvml.Return {
			return d.RegisterEvents(nvml.EventTypeXidCriticalError, created.set)
		})
		if err != nil {
			continue // the survey says what is wrong with it
		}
	}
	err = b.listen(ctx, created.set, emit)
	if !errors.Is(err, errHangs) {
		created.set.Free() // not under a call that is still out
	}
	return err
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
	wait := min(longestWait, b.guard.timeout/2)
	for ctx.Err() == nil {
		r, err := call(b.guard, "events", func() received {
			data, ret := set.Wait(uint32(wait.Milliseconds()))
			return received{data, ret}
		})
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
