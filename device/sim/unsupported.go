package sim

import (
	"reflect"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// The calls that the simulator does not model answer as a driver too old for
// them would: with ERROR_NOT_SUPPORTED, never with a panic.
func unsupportedLibrary() nvml.Interface  { return unsupported(&mock.Interface{}) }
func unsupportedDevice() nvml.Device      { return unsupported(&mock.Device{}) }
func unsupportedGI() nvml.GpuInstance     { return unsupported(&mock.GpuInstance{}) }
func unsupportedCI() nvml.ComputeInstance { return unsupported(&mock.ComputeInstance{}) }
func unsupportedEventSet() nvml.EventSet  { return unsupported(&mock.EventSet{}) }

// unsupported sets every function of a mock that is not set.
func unsupported[T any](m T) T {
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
