package admit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// task is a task that is read but not yet changed.
type task struct {
	object    object
	resources object
	devices   []json.RawMessage
	blocks    []DeviceAsk // the GPU blocks among devices
	header    taskHeader
}

type taskHeader struct {
	Name, Driver string
	Meta         map[string]string
	Constraints  []*Constraint
	Lifecycle    *struct {
		Hook    string
		Sidecar bool
	}
	CPU, Cores *int
	MemoryMB   *int
}

// affinity is Nomad's JSON form.
type affinity struct {
	LTarget, RTarget, Operand string
	Weight                    *int8
}

// maxBlocks is beyond what any machine has of GPUs and MIG instances.
const maxBlocks = 256

func readTask(raw []byte, devices []string) (task, error) {
	var t task
	var err error
	if t.object, err = parseObject(raw); err != nil {
		return t, err
	}
	h := &t.header
	if err := t.object.decodeAll(map[string]any{
		"Name": &h.Name, "Driver": &h.Driver, "Meta": &h.Meta, "Constraints": &h.Constraints, "Lifecycle": &h.Lifecycle,
	}); err != nil {
		return t, err
	}
	if t.resources, err = parseObject(t.object.get("Resources")); err != nil {
		return t, fmt.Errorf("task %q: %w", h.Name, err)
	}
	if err := t.resources.decodeAll(map[string]any{"CPU": &h.CPU, "Cores": &h.Cores, "MemoryMB": &h.MemoryMB}); err != nil {
		return t, fmt.Errorf("task %q: %w", h.Name, err)
	}
	if t.devices, err = parseArray(t.resources.get("Devices")); err != nil {
		return t, fmt.Errorf("task %q: %w", h.Name, err)
	}
	for i, raw := range t.devices {
		block, err := readDevice(i, raw, devices)
		if err != nil {
			return t, fmt.Errorf("task %q: %w", h.Name, err)
		}
		if isGPU(block.Name, devices) {
			t.blocks = append(t.blocks, block)
		}
	}
	if len(t.blocks) > maxBlocks {
		return t, fmt.Errorf("task %q: %d device blocks for GPUs, at most %d are read", h.Name, len(t.blocks), maxBlocks)
	}
	return t, nil
}

// firstGPU reads the first of some alternatives that is a GPU.
func firstGPU(index int, alternatives []json.RawMessage, devices []string) (DeviceAsk, error) {
	for _, raw := range alternatives {
		d, err := readDevice(index, raw, devices)
		if err != nil {
			return DeviceAsk{}, err
		}
		if isGPU(d.Name, devices) {
			d.Alternative = true
			return d, nil
		}
	}
	return DeviceAsk{Index: index}, nil
}

func readDevice(index int, raw []byte, devices []string) (DeviceAsk, error) {
	o, err := parseObject(raw)
	if err != nil {
		return DeviceAsk{}, err
	}
	d := DeviceAsk{Index: index}
	var count *uint64
	var constraints []*Constraint
	var affinities []*affinity
	if err := o.decodeAll(map[string]any{
		"Name": &d.Name, "Count": &count, "Constraints": &constraints, "Affinities": &affinities,
	}); err != nil {
		return DeviceAsk{}, err
	}
	if d.Name == "" { // the first of several that is available: Nomad tries them in order
		var alternatives []json.RawMessage
		if err := o.decode("FirstAvailable", &alternatives); err != nil {
			return DeviceAsk{}, err
		}
		return firstGPU(index, alternatives, devices)
	}
	d.Count = int64(or(count, 1))
	d.Constraints = theirs(constraints)
	for _, a := range affinities {
		if a != nil && !marked(a.RTarget) {
			d.Affinities = append(d.Affinities, a.plain())
		}
	}
	return d, nil
}

func (a *affinity) plain() Affinity {
	return Affinity{LTarget: a.LTarget, RTarget: a.RTarget, Operand: a.Operand, Weight: int(or(a.Weight, 50))}
}

// theirs are the constraints that the user wrote.
func theirs(constraints []*Constraint) []Constraint {
	var out []Constraint
	for _, c := range constraints {
		if c != nil && !c.ours() {
			out = append(out, *c)
		}
	}
	return out
}

var (
	gpuVendors = []string{"nvidia", "amd", "intel", "huawei"}
	gpuTypes   = []string{"gpu", "npu", "partition", "vf", "vnpu", "slice", "shared", "mig", "mig-slice", "mig-shared"}
)

// isGPU reports whether a device block's name (type, vendor/type or
// vendor/type/name) is one of a GPU, by itself or as one of the operator's names
// for GPUs.
func isGPU(name string, devices []string) bool {
	if slices.ContainsFunc(devices, func(d string) bool { return name == d || strings.HasPrefix(name, d+"/") }) {
		return true
	}
	parts := strings.SplitN(name, "/", 3)
	if len(parts) == 1 {
		return slices.Contains(gpuTypes, parts[0])
	}
	return slices.Contains(gpuVendors, parts[0]) && slices.Contains(gpuTypes, parts[1])
}
