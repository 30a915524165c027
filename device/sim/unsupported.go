package sim

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// The calls that the simulator does not model answer as a driver too old for
// them would: with ERROR_NOT_SUPPORTED, never with a panic.
func unsupportedLibrary() nvml.Interface  { return Unsupported(&mock.Interface{}) }
func unsupportedDevice() nvml.Device      { return Unsupported(&mock.Device{}) }
func unsupportedGI() nvml.GpuInstance     { return Unsupported(&mock.GpuInstance{}) }
func unsupportedCI() nvml.ComputeInstance { return Unsupported(&mock.ComputeInstance{}) }
func unsupportedEventSet() nvml.EventSet  { return Unsupported(&mock.EventSet{}) }
func unsupportedSample() nvml.GpmSample   { return Unsupported(&mock.GpmSample{}) }

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
