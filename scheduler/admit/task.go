// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
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
	Networks   []network
}

// affinity is Nomad's JSON form.
type affinity struct {
	LTarget, RTarget, Operand string
	Weight                    *int8
}

// firstAvailable is where a block of a newer Nomad has its alternatives.
const firstAvailable = "FirstAvailable"

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
	if err := t.resources.decodeAll(map[string]any{"CPU": &h.CPU, "Cores": &h.Cores, "MemoryMB": &h.MemoryMB, "Networks": &h.Networks}); err != nil {
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

// readAlternatives reads those of some alternatives that are GPUs. What one does not say
// it has from the block around it.
func readAlternatives(around DeviceAsk, list []json.RawMessage, devices []string) (DeviceAsk, error) {
	first := DeviceAsk{Index: around.Index, Alternative: true}
	for _, raw := range list {
		d, counted, err := readBlock(around.Index, raw)
		if err != nil {
			return DeviceAsk{}, err
		}
		if d.Name = firstOf(d.Name, around.Name); !counted {
			d.Count = around.Count
		}
		d.Constraints, d.Affinities = slices.Concat(around.Constraints, d.Constraints), slices.Concat(around.Affinities, d.Affinities)
		switch {
		case !isGPU(d.Name, devices):
			continue
		case first.Name == "":
			d.Alternative = true
			first = d
		default:
			first.Or = append(first.Or, d)
		}
	}
	return first, nil
}

// readDevice reads a device block, or one that leaves Nomad the choice: the first of its
// alternatives that is available.
func readDevice(index int, raw []byte, devices []string) (DeviceAsk, error) {
	d, _, err := readBlock(index, raw)
	if err != nil {
		return DeviceAsk{}, err
	}
	alternatives, err := alternativesOf(raw)
	if err != nil || len(alternatives) == 0 {
		return d, err
	}
	return readAlternatives(d, alternatives, devices)
}

func alternativesOf(raw []byte) (list []json.RawMessage, err error) {
	o, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	return list, o.decode(firstAvailable, &list)
}

// readBlock reads what a device block says itself, and whether it says how many.
func readBlock(index int, raw []byte) (d DeviceAsk, counted bool, err error) {
	o, err := parseObject(raw)
	if err != nil {
		return d, false, err
	}
	d.Index = index
	var count *uint64
	var constraints []*Constraint
	var affinities []*affinity
	if err := o.decodeAll(map[string]any{
		"Name": &d.Name, "Count": &count, "Constraints": &constraints, "Affinities": &affinities,
	}); err != nil {
		return d, false, err
	}
	if anyPart(d.Name) {
		return d, false, malformed(fmt.Sprintf("device %q is not valid (type, vendor/type or vendor/type/name): Nomad takes an empty part for any, so it may mean any device", d.Name))
	}
	d.Count = int64(or(count, 1))
	d.Constraints = theirs(constraints)
	for _, a := range affinities {
		if a != nil && !marked(a.RTarget) {
			d.Affinities = append(d.Affinities, a.plain())
		}
	}
	return d, count != nil, nil
}

func (a *affinity) plain() Affinity {
	return Affinity{LTarget: a.LTarget, RTarget: a.RTarget, Operand: a.Operand, Weight: int(or(a.Weight, 50))}
}

// theirs are the constraints that the user wrote.
func theirs(constraints []*Constraint) []Constraint {
	var out []Constraint
	slots := slotsAt(constraints)
	for i, c := range constraints {
		if c != nil && !c.ours() && i != slots {
			out = append(out, *c)
		}
	}
	return out
}

// anyPart reports whether the vendor or the type in a device's name is empty. Nomad has such
// a block match whatever it finds there, GPUs too.
func anyPart(name string) bool {
	parts := strings.SplitN(name, "/", 3)
	return len(parts) > 1 && (parts[0] == "" || parts[1] == "")
}

// isGPU reports whether a device block's name (type, vendor/type or
// vendor/type/name) is one of a GPU, by itself or as one of the operator's names
// for GPUs.
func isGPU(name string, devices []string) bool {
	parts := strings.SplitN(name, "/", 3)
	if slices.ContainsFunc(devices, func(d string) bool {
		// A name without a vendor is a type: of whichever vendor, as the service writes it.
		return name == d || strings.HasPrefix(name, d+"/") || !strings.Contains(d, "/") && len(parts) > 1 && parts[1] == d
	}) {
		return true
	}
	if len(parts) == 1 {
		_, _, known := gpu.ModeOfType(parts[0])
		return known
	}
	_, _, known := gpu.ModeOfType(parts[1])
	return known && slices.Contains(gpu.Vendors(), parts[0])
}
