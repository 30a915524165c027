// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// unsupported answers the calls that the simulator does not model as a driver
// too old for them would: with ERROR_NOT_SUPPORTED, never with a panic. It has
// no state, so one does for all.
type unsupported struct {
	library nvml.Interface
	device  nvml.Device
	gi      nvml.GpuInstance
	ci      nvml.ComputeInstance
	events  nvml.EventSet
	sample  nvml.GpmSample
}

func newUnsupported() unsupported {
	return unsupported{
		library: Unsupported(&mock.Interface{}),
		device:  Unsupported(&mock.Device{}),
		gi:      Unsupported(&mock.GpuInstance{}),
		ci:      Unsupported(&mock.ComputeInstance{}),
		events:  Unsupported(&mock.EventSet{}),
		sample:  Unsupported(&mock.GpmSample{}),
	}
}

// Unsupported gives every function of one of go-nvml's mocks that is not set the
// answer ERROR_NOT_SUPPORTED, so that calling it does not panic.
func Unsupported[T any](m T) T {
	v := reflect.ValueOf(m).Elem()
	notSupported := reflect.ValueOf(nvml.ERROR_NOT_SUPPORTED)
	for i := range v.NumField() {
		field := v.Field(i)
		if field.Kind() != reflect.Func || !field.CanSet() || !field.IsNil() {
			continue
		}
		kind := field.Type()
		field.Set(reflect.MakeFunc(kind, func([]reflect.Value) []reflect.Value {
			results := make([]reflect.Value, kind.NumOut())
			for i := range results {
				results[i] = reflect.Zero(kind.Out(i))
				if kind.Out(i) == notSupported.Type() {
					results[i] = notSupported
				}
			}
			return results
		}))
	}
	return m
}
