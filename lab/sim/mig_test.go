// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

func TestParseLayout(t *testing.T) {
	for _, c := range []struct {
		model  string
		memory int64
		text   string
		want   string // profiles and their parts, or what is wrong
	}{
		{"A100", 81559, "3g.40gb+4g.40gb", "3g.40gb 428 502, 4g.40gb 571 502"},
		{"A100", 40536, "1g.5gb+1g.5gb+1g.5gb+1g.5gb+1g.5gb+1g.5gb+1g.5gb", "1g.5gb 142 126"},
		{"H200", 143771, "3g.71gb+3g.71gb", "3g.71gb 428 505, 3g.71gb 428 505"},
		{"H100", 81559, "7g.80gb", "7g.80gb 1000 1000"},
		{"A30", 24576, "2g.12gb+2g.12gb", "2g.12gb 500 500, 2g.12gb 500 500"},
		{"A100", 81559, "4g.40gb+4g.40gb", "more than the 7 parts"},
		{"A30", 24576, "3g.18gb+2g.12gb", "more than the 4 parts"},
		{"A100", 40536, "4g.40gb+3g.40gb", "40536 MiB"},
		{"A100", 81559, "", `"" is not a profile`},
		{"A100", 81559, "8g.80gb", `"8g.80gb" is not a profile`},
		{"A100", 81559, "1g.0gb", `"1g.0gb" is not a profile`},
		{"A100", 0, "7g.80gb", "column gpu_memory_mib"},
	} {
		l, err := ParseLayout(c.model, c.memory, c.text)
		if err != nil {
			if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s on %s: %v, want %q", c.text, c.model, err, c.want)
			}
			continue
		}
		var parts []string
		for _, in := range *l {
			parts = append(parts, in.Profile+" "+int64Text(in.ComputeMilli)+" "+int64Text(in.MemoryMilli))
		}
		if got := strings.Join(parts, ", "); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s on %s: %s, want %s", c.text, c.model, got, c.want)
		}
	}
}

// A task goes to the smallest instance that is enough for it, of a model that it may use, and
// where none is free to a GPU that is not cut. Whole GPUs are not cut ones.
func TestTasksOnInstances(t *testing.T) {
	nodes := []Node{
		{Name: "cut", CPUMilli: 64000, MemoryMiB: 64000, GPUs: 1, Model: "A100", GPUMemoryMiB: 81559},
		{Name: "plain", CPUMilli: 64000, MemoryMiB: 64000, GPUs: 1, Model: "T4"},
	}
	nodes, err := Cut(nodes, "A100", "3g.40gb+2g.20gb+1g.10gb+1g.10gb")
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlanned(nodes, nil, place.PolicyBalanced, quickWeights())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		task Task
		want string // node and position
	}{
		{Task{GPUs: 1, GPUMilli: 100}, "cut 2"},
		{Task{GPUs: 1, GPUMilli: 140, GPUMemoryMilli: 200}, "cut 1"}, // its memory is more than 10 GB
		{Task{GPUs: 1, GPUMilli: 100, Models: []string{"T4"}}, "plain 0"},
		{Task{GPUs: 1, GPUMilli: 400}, "cut 0"},
		{Task{GPUs: 1, GPUMilli: 400}, "plain 0"}, // the instance is taken
		{Task{GPUs: 1, GPUMilli: 100}, "cut 3"},
		{Task{GPUs: 1, GPUMilli: 900}, ""}, // no instance is enough, and the other GPU is in use
		{Task{GPUs: 1, GPUMilli: 1000}, ""},
		{Task{CPUMilli: 1000}, "cut"},
	} {
		p.Arrive(&c.task, 0)
		spot, ok := p.Place(&c.task, 0)
		got := ""
		if ok {
			got = nodes[spot.Node].Name
			for _, g := range spot.GPUs {
				got += " " + int64Text(int64(g))
			}
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v goes to %q, want %q", c.task, got, c.want)
		}
	}
}

func int64Text(n int64) string { return strconv.FormatInt(n, 10) }
