// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Layout is how a GPU is cut into MIG instances.
type Layout []Instance

// Instance is a MIG instance, and which part of the GPU's compute and memory it is.
type Instance struct {
	Profile      string // "3g.40gb"
	ComputeMilli int64
	MemoryMilli  int64
}

var profileName = regexp.MustCompile(`^([1-7])g\.([1-9][0-9]{0,2})gb$`)

// ErrLayout is wrapped by errors about a layout.
var ErrLayout = errors.New("is not a MIG layout")

// ParseLayout reads a layout of a GPU of a model: profiles, joined by "+". Which instances
// fit side by side only the GPU itself knows; here they must not be more than it has.
func ParseLayout(model string, memoryMiB int64, text string) (*Layout, error) {
	if memoryMiB <= 0 {
		return nil, fmt.Errorf("%q %w for %s: the list of nodes does not say how much memory its GPUs have (column gpu_memory_mib)", text, ErrLayout, model)
	}
	parts, all := computeParts(model), int64(0)
	var l Layout
	var memory int64
	for _, name := range strings.Split(text, "+") {
		m := profileName.FindStringSubmatch(name)
		if m == nil {
			return nil, fmt.Errorf("%q %w: %q is not a profile (write 1g.10gb, 3g.40gb+4g.40gb)", text, ErrLayout, name)
		}
		g, _ := strconv.ParseInt(m[1], 10, 64) // a digit
		gib, _ := strconv.ParseInt(m[2], 10, 64)
		all, memory = all+g, memory+gib-1 // sizes are rounded up
		l = append(l, Instance{name, g * gpuMilli / parts, min(gpuMilli, gib*1024*gpuMilli/memoryMiB)})
	}
	if all > parts || memory*1024 >= memoryMiB {
		return nil, fmt.Errorf("%q %w of %s: it takes more than the %d parts of its compute or its %d MiB", text, ErrLayout, model, parts, memoryMiB)
	}
	return &l, nil
}

// computeParts is into how many parts MIG cuts the compute of a model.
func computeParts(model string) int64 {
	if strings.Contains(strings.ToUpper(model), "A30") {
		return 4
	}
	return 7
}

// Cut are nodes with the GPUs of a model cut.
func Cut(nodes []Node, model, layout string) ([]Node, error) {
	nodes = slices.Clone(nodes)
	found := false
	for i := range nodes {
		n := &nodes[i]
		if !strings.EqualFold(n.Model, model) || n.GPUs == 0 {
			continue
		}
		l, err := ParseLayout(model, n.GPUMemoryMiB, layout)
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", n.Name, err)
		}
		n.Layout, found = l, true
	}
	if !found {
		return nil, fmt.Errorf("no node has a GPU of model %q", model)
	}
	return nodes, nil
}

// instances are the ways to have a task that takes parts of GPUs run on MIG instances: of
// each layout the smallest instance that has as much compute and memory, once.
func instances(layouts map[string]*Layout, t *Task, r place.Request) []place.Request {
	if t.GPUs == 0 || t.GPUMilli == gpuMilli {
		return nil
	}
	var out []place.Request
	for model, l := range layouts {
		best := -1
		for i, in := range *l {
			if in.ComputeMilli >= t.GPUMilli && in.MemoryMilli >= t.memoryMilli() && (best < 0 || cmp.Or(cmp.Compare(in.ComputeMilli, (*l)[best].ComputeMilli), cmp.Compare(in.MemoryMilli, (*l)[best].MemoryMilli)) < 0) {
				best = i
			}
		}
		if best < 0 || !mayUse(t, model) {
			continue
		}
		r.Profile, r.Models, r.Whole, r.ShareMilli, r.MemoryMiBPerGPU = (*l)[best].Profile, []string{model}, true, 0, 0
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b place.Request) int { return strings.Compare(a.Models[0], b.Models[0]) })
	return out
}
