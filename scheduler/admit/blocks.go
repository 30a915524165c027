package admit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// Chosen is a GPU that was chosen for a task, and how much of it.
type Chosen struct {
	// Group is Nomad's device group: "nvidia/slice/A100/0".
	Group string
	Mode  gpu.Mode
	// Type is the value of the attribute type, "A100", and Model that of
	// model, the full name. Type is empty where the device plugin has none.
	Type, Model string
	// Slices is how many the GPU has, SliceMemoryMiB what each holds, and Take
	// how many of them the task gets. All are 0 unless Mode is ModeSlice.
	Slices, SliceMemoryMiB, Take int64
	// MemoryMiB is the whole GPU's.
	MemoryMiB int64
}

// Blocks translates a request and the GPUs chosen for it into device blocks and
// the driver's settings. All GPUs of one task are alike.
//
//	1 on whole GPUs       nvidia/gpu × 1
//	2(V100) on slices     two blocks of all slices, one per GPU
//	0.5 on slices         nvidia/slice × take, of GPUs with as many slices
//	8G, 8G,0.5 on slices  nvidia/slice × take, of GPUs with slices as large
//	8G on MIG             nvidia/mig/1g.10gb × 1
//
// Only what makes the promise true becomes a constraint; which GPU it was is a
// preference.
func Blocks(t TaskAsk, chosen []Chosen) (TaskDecision, error) {
	d := TaskDecision{Task: t.Task}
	if t.Plain() {
		return blocksOfPlain(d, t, chosen), nil
	}
	if err := checkChosen(t, chosen); err != nil {
		return d, err
	}
	for _, c := range chosen {
		block, err := c.block(t.Request)
		if err != nil {
			return d, err
		}
		d.Devices = merge(d.Devices, block)
	}
	d.Holds = holds(t, chosen)
	d.Share = chosen[0].share(t)
	return d, nil
}

// blocksOfPlain prefers the chosen GPUs in the user's own blocks.
func blocksOfPlain(d TaskDecision, t TaskAsk, chosen []Chosen) TaskDecision {
	for i := range t.Devices {
		var prefer string
		if i < len(chosen) {
			_, prefer = chosen[i].name()
		}
		d.Devices = append(d.Devices, Device{Prefer: prefer})
	}
	if len(chosen) > 0 {
		d.Holds = holds(t, chosen)
	}
	return d
}

func checkChosen(t TaskAsk, chosen []Chosen) error {
	want := 1
	if t.Request.Kind == gpu.KindCount {
		want = t.Request.Count
	}
	if len(chosen) != want {
		return fmt.Errorf("translate %q for task %q: %d GPUs were chosen, want %d", t.Request, t.Task, len(chosen), want)
	}
	return nil
}

// name is the name that a device block asks for, and the name of the device
// group within it.
func (c Chosen) name() (ask, group string) {
	parts := strings.SplitN(c.Group, "/", 3)
	if len(parts) < 3 {
		return c.Group, ""
	}
	if parts[1] == "mig" || c.Type == "" { // the group's name is what one asks for
		return c.Group, parts[2]
	}
	return parts[0] + "/" + parts[1], parts[2]
}

func (c Chosen) block(r gpu.Request) (Device, error) {
	ask, group := c.name()
	d := Device{Name: ask, Count: 1, Prefer: group}
	d.Constraints = c.modelConstraints(r)
	if c.Mode != gpu.ModeSlice {
		return d, nil
	}
	d.Count = c.Take
	if r.Kind == gpu.KindCount {
		d.Count = c.Slices
	}
	if d.Count < 1 || d.Count > c.Slices {
		return d, fmt.Errorf("translate %q: %d of the %d slices of %s", r, d.Count, c.Slices, c.Group)
	}
	if r.Kind == gpu.KindMemory && d.Count < c.Slices {
		d.Constraints = append(d.Constraints, Constraint{
			LTarget: "${device.attr.slice_memory}", RTarget: strconv.FormatInt(c.SliceMemoryMiB, 10) + " MiB", Operand: ">="})
	} else { // a part of a GPU is so many slices of so many
		d.Constraints = append(d.Constraints, Constraint{
			LTarget: "${device.attr.slices}", RTarget: strconv.FormatInt(c.Slices, 10), Operand: "="})
	}
	return d, nil
}

// modelConstraints holds the request to the model that it names, in the words
// of the attribute that the chosen GPU has.
func (c Chosen) modelConstraints(r gpu.Request) []Constraint {
	switch {
	case r.Model == "":
		return nil
	case strings.EqualFold(r.Model, c.Type):
		return []Constraint{{LTarget: "${device.attr.type}", RTarget: c.Type, Operand: "="}}
	case c.Type == "" || c.Model == "":
		return nil // the block's name holds the model
	}
	return []Constraint{{LTarget: "${device.attr.model}", RTarget: c.Model, Operand: "="}}
}

// merge adds a block, to the last one where both are instances of one group:
// Nomad serves a block from one group, so whole GPUs of one model are one.
func merge(list []Device, d Device) []Device {
	if n := len(list); n > 0 && !strings.Contains(d.Name, "slice") && list[n-1].Name == d.Name && list[n-1].Prefer == d.Prefer {
		list[n-1].Count += d.Count
		return list
	}
	return append(list, d)
}

// holds is what the task has of its GPUs, for its framework. The type is told
// only where it is certain: the task may land on another GPU that fits.
func holds(t TaskAsk, chosen []Chosen) framework.Share {
	c := chosen[0]
	s := framework.Share{GPUs: len(chosen), Whole: c.whole(t), MemoryMiB: c.MemoryMiB}
	if strings.EqualFold(t.Request.Model, c.Type) {
		s.Type = c.Type
	}
	if s.Whole {
		return s
	}
	s.MemoryMiB = c.Take * c.SliceMemoryMiB
	if own := c.share(t).MemoryMiB; own > 0 {
		s.MemoryMiB = own
	}
	return s
}

// whole reports whether the task has the GPU for itself.
func (c Chosen) whole(t TaskAsk) bool {
	return c.Mode == gpu.ModeWhole || c.Mode == gpu.ModeSlice && (c.Take >= c.Slices || t.Request.Kind == gpu.KindCount)
}

// share is what the driver must be told beside the slices. All slices are the
// whole GPU, without limits.
func (c Chosen) share(t TaskAsk) gpu.Share {
	r := t.Request
	if c.Mode != gpu.ModeSlice || c.whole(t) {
		return gpu.Share{}
	}
	s := gpu.Share{LimitMilli: t.LimitMilli, GuaranteeMilli: r.Milli}
	if r.Kind == gpu.KindMemory && r.MemoryMiB < c.Take*c.SliceMemoryMiB {
		s.MemoryMiB = r.MemoryMiB
	}
	return s
}
