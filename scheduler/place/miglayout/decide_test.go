// SPDX-License-Identifier: MPL-2.0

package miglayout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// seven is an H100 cut into seven, of which some are busy.
func seven(id string, busy ...int) GPU {
	g := GPU{ID: id, Name: "GPU " + id, Node: "node-" + id, Pool: "pool", Profiles: h100(), AtOnce: 2, PerDay: 4}
	for start := range 7 {
		g.Instances = append(g.Instances, Instance{MIGInstance: gpu.MIGInstance{UUID: fmt.Sprint(id, "-", start), MIGPlace: gpu.MIGPlace{Profile: "1g.10gb", Start: start}},
			Busy: slices.Contains(busy, start)})
	}
	return g
}

// makesOne has GPU a being cut.
func makesOne(g *GPU) {
	if g.ID == "a" {
		g.Cutting, g.Coming = true, []gpu.MIGPlace{{Profile: "3g.40gb", Start: 0}}
	}
}

// Instances of one allocation are made on one node, beside those that are free there.
func TestInstancesOfOneAllocationAreMadeOnOneNode(t *testing.T) {
	now := epoch.Add(48 * time.Hour)
	for _, tc := range []struct {
		name  string
		busy  [3][]int // of GPUs a, b, c
		nodes [3]string
		wants string // of one allocation, or of several with a slash: profile x count
		cut   string
		why   string
	}{
		{"two halves of one GPU", [3][]int{{0}, {0}, nil}, [3]string{"m", "n", "o"}, "3g.40gb x2", "c 3g.40gb@0 3g.40gb@4", ""},
		{"of two GPUs of a node", [3][]int{{0}, {0}, {0, 6}}, [3]string{"m", "m", "o"}, "3g.40gb x2", "a 3g.40gb@4; b 3g.40gb@4", ""},
		{"of different nodes", [3][]int{{0}, {0}, {0, 6}}, [3]string{"m", "n", "o"}, "3g.40gb x2", "", "no node has room for all instances"},
		{"two sizes", [3][]int{{0}, {0, 5}, nil}, [3]string{"m", "n", "o"}, "3g.40gb x1, 2g.20gb x1", "a 2g.20gb@2 3g.40gb@4", ""},
		{"two allocations", [3][]int{{0, 5}, nil, nil}, [3]string{"m", "n", "o"}, "3g.40gb x2 / 3g.40gb x2", "b 3g.40gb@0 3g.40gb@4; c 3g.40gb@0 3g.40gb@4", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var gpus []GPU
			for n, id := range []string{"a", "b", "c"} {
				g := seven(id, tc.busy[n]...)
				g.Node, g.Pool = tc.nodes[n], tc.nodes[n]
				gpus = append(gpus, g)
			}
			var wants []Want
			for n, alloc := range strings.Split(tc.wants, " / ") {
				for _, w := range strings.Split(alloc, ", ") {
					one := Want{Key: "job", Count: 1, Alloc: n + 1, Since: now.Add(-time.Minute)}
					var profile string
					if _, err := fmt.Sscanf(w, "%s x%d", &profile, &one.Count); err != nil {
						t.Fatal(err)
					}
					one.Profiles = []string{profile}
					wants = append(wants, one)
				}
			}
			answer := Decide(now, gpus, wants, nil, DefaultRules)
			var cuts []string
			for _, c := range answer.Cuts {
				text := c.GPU
				for _, at := range c.Make {
					if at.Profile != "1g.10gb" {
						text += " " + at.String()
					}
				}
				cuts = append(cuts, text)
			}
			if got := strings.Join(cuts, "; "); got != tc.cut || !strings.Contains(answer.Left["job"], tc.why) {
				t.Errorf("cut %q, want %q; %v", got, tc.cut, answer.Left)
			}
		})
	}
}

func TestDecide(t *testing.T) {
	now := epoch.Add(48 * time.Hour)
	want := func(profiles string, count int) Want {
		return Want{Key: "job", Profiles: strings.Fields(profiles), Count: count, Since: now.Add(-time.Minute)}
	}
	for _, tc := range []struct {
		name   string
		gpus   []GPU
		want   Want
		change func(g *GPU)
		cut    string // GPU and the instances made
		why    string
	}{
		{"a place beside one that is in use", []GPU{seven("a", 0)}, want("3g.40gb", 1), nil, "a 3g.40gb@4", ""},
		{"on the other half", []GPU{seven("a", 5)}, want("3g.40gb", 1), nil, "a 3g.40gb@0", ""},
		{"the GPU that is empty", []GPU{seven("a", 1, 5), seven("b")}, want("7g.80gb", 1), nil, "b 7g.80gb@0", ""},
		{"both halves in use", []GPU{seven("a", 1, 5)}, want("3g.40gb", 1), nil, "", "2 instances of GPU a are in use, and leave no place for 3g.40gb"},
		{"one is free", []GPU{seven("a", 1, 5)}, want("1g.10gb", 1), nil, "", "an instance is free"},
		{"the next size does", []GPU{seven("a", 1, 5)}, want("3g.40gb 2g.20gb", 1), nil, "a 2g.20gb@2", ""},
		{"two at once", []GPU{seven("a"), seven("b"), seven("c")}, want("7g.80gb", 3), nil, "a 7g.80gb@0; b 7g.80gb@0", "waits: 2 GPUs are being cut"},
		{"often enough", []GPU{seven("a")}, want("3g.40gb", 1), func(g *GPU) {
			for n := range 4 {
				g.Cuts = append(g.Cuts, now.Add(-time.Duration(n+1)*time.Hour))
			}
		}, "", "was cut 4 times within a day"},
		{"a moment ago", []GPU{seven("a")}, want("3g.40gb", 1), func(g *GPU) { g.Cuts = []time.Time{now.Add(-time.Second)} }, "", "was cut a moment ago"},
		{"not allowed", []GPU{seven("a")}, want("3g.40gb", 1), func(g *GPU) { g.Profiles = h100("1g.10gb") }, "", "may be cut into 3g.40gb"},
		{"least", []GPU{seven("a")}, want("7g.80gb", 1), func(g *GPU) { g.Least = []string{"1g.10gb"} }, "", "the operator wants other instances to remain"},
		{"least, and room", []GPU{seven("a")}, want("4g.40gb", 1), func(g *GPU) { g.Least = []string{"1g.10gb"} }, "a 4g.40gb@0", ""},
		{"unready", []GPU{seven("a")}, want("3g.40gb", 1), func(g *GPU) { g.Unready = "is cordoned" }, "", "GPU a is cordoned"},
		{"the end is known", []GPU{seven("a", 1, 5)}, want("7g.80gb", 1), func(g *GPU) {
			for n := range g.Instances {
				g.Instances[n].Until = now.Add(20 * time.Minute)
			}
		}, "", "it would be empty in about 20m0s"},
		{"one is being made", []GPU{seven("a"), seven("b")}, want("3g.40gb", 1), makesOne, "", "being made for it"},
		{"one of two is being made", []GPU{seven("a"), seven("b")}, want("3g.40gb", 2), makesOne, "b 3g.40gb@4", ""},
		{"another node", []GPU{seven("a")}, Want{Key: "job", Profiles: []string{"3g.40gb"}, Count: 1, Nodes: map[string]bool{"other": true}}, nil, "", "may not run on the node"},
		{"for a moment only", []GPU{seven("a")}, Want{Key: "job", Profiles: []string{"3g.40gb"}, Count: 1, Since: now}, nil, "", "waits for a moment only"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.change != nil {
				tc.change(&tc.gpus[0])
			}
			answer := Decide(now, tc.gpus, []Want{tc.want}, nil, DefaultRules)
			var cuts []string
			for _, c := range answer.Cuts {
				text := c.GPU
				for _, at := range c.Make {
					text += " " + at.String()
				}
				cuts = append(cuts, text)
				g := tc.gpus[slices.IndexFunc(tc.gpus, func(g GPU) bool { return g.ID == c.GPU })]
				for _, i := range g.Instances {
					if i.Busy && slices.Contains(c.Remove, i.UUID) {
						t.Errorf("%s is in use", i.UUID)
					}
				}
			}
			if got := strings.Join(cuts, "; "); got != tc.cut {
				t.Errorf("cut %q, want %q", got, tc.cut)
			}
			if why := answer.Left["job"]; !strings.Contains(why, tc.why) || tc.why == "" && why != "" {
				t.Errorf("why is %q, want %q", why, tc.why)
			}
		})
	}
}

// A part of the trace: the table by load and mix is TestByLoadAndMix.
func TestLayoutsThatFollowDemandAllocateMore(t *testing.T) {
	const gpus, perDay = 8, 24
	trace := generate(3, 1000, gpus, .8, time.Hour, 12*time.Hour, []mix{{.6, .3, .1, 0}, {.05, .05, .4, .5}})
	bound := knowing(trace, gpus)
	static := outcome{}
	for _, layout := range layouts {
		if o := replay(t, newWorld(slices.Repeat([][]string{layout}, gpus), 0), trace, 30*time.Minute, nil); o.allocated > static.allocated {
			static = o
		}
	}
	demand := replay(t, newWorld(slices.Repeat([][]string{{"7g.80gb"}}, gpus), perDay), trace, 30*time.Minute, &DefaultRules)
	t.Logf("static %.3f, demand %.3f, bound %.3f, %d re-cuts within a day at most", static.allocated, demand.allocated, bound, demand.most)
	if demand.allocated < static.allocated+.10 || demand.allocated < .9*bound || demand.most > perDay || demand.cuts == 0 {
		t.Errorf("static %+v, demand %+v, bound %.3f", static, demand, bound)
	}
}
