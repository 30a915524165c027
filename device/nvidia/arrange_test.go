// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

// card is a simulated GPU with MIG on, and what can be made of it.
func card(t *testing.T, model string) (*Backend, string, *layout) {
	t.Helper()
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"test\" {}\ngpu {\n model = \""+model+"\"\n}"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := sim.New(topology, sim.Options{Dir: tmpfs.Dir(t), BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	b := New(m, time.Minute)
	t.Cleanup(b.Close)
	if err := b.Layout(topology.UUID(0), nil); err != nil {
		t.Fatal(err)
	}
	d, ret := m.DeviceGetHandleByUUID(topology.UUID(0))
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	l, err := b.layoutOf(d)
	if err != nil {
		t.Fatal(err)
	}
	return b, topology.UUID(0), l
}

// arrangements are all ways to divide the card, also those that leave room.
func (l *layout) arrangements() [][]placed {
	var candidates []placed
	for _, profile := range slices.Sorted(maps.Keys(l.places)) {
		for _, at := range l.places[profile] {
			candidates = append(candidates, placed{profile: profile, at: at, whole: true})
		}
	}
	var all [][]placed
	var extend func(chosen, rest []placed)
	extend = func(chosen, rest []placed) {
		all = append(all, chosen)
		for i, p := range rest {
			if !slices.ContainsFunc(chosen, func(c placed) bool { return overlap(c.at, p.at) }) && count(chosen)[p.profile] < int(l.profiles[p.profile].InstanceCount) {
				extend(append(slices.Clip(chosen), p), rest[i+1:])
			}
		}
	}
	extend(nil, candidates)
	return all
}

func count(all []placed) map[int]int {
	n := map[int]int{}
	for _, p := range all {
		n[p.profile]++
	}
	return n
}

// Every layout that a card can have is reached from every other, whatever places the
// instances that are there have. NVIDIA's driver moves none.
func TestEveryLayoutIsReachedFromEveryOther(t *testing.T) {
	for _, model := range []string{"A30", "A100-40GB", "H100", "B200"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			_, _, l := card(t, model)
			layouts := map[string][][]placed{} // by their profiles
			for _, a := range l.arrangements() {
				key := fmt.Sprint(count(a))
				layouts[key] = append(layouts[key], a)
			}
			keys := slices.Sorted(maps.Keys(layouts))
			t.Logf("%d layouts", len(keys))
			random := rand.New(rand.NewPCG(1, 2))
			for _, from := range keys {
				for _, to := range keys {
					there, wanted := layouts[from][random.IntN(len(layouts[from]))], count(layouts[to][0])
					stay, add, ok := arrange(l.places, there, wanted)
					made := append(slices.Clone(stay), add...)
					if !ok || !maps.Equal(count(made), wanted) || from == to && len(add) > 0 {
						t.Fatalf("from %v to %v: %t, %v stay and %v are made", there, wanted, ok, stay, add)
					}
					for i, p := range made {
						if !slices.Contains(l.places[p.profile], p.at) || slices.ContainsFunc(made[:i], func(o placed) bool { return overlap(o.at, p.at) }) {
							t.Fatalf("from %v to %v: %v", there, wanted, made)
						}
					}
				}
			}
		})
	}
}

// What stays is as much as any way to make the layout would leave in place.
func TestAsManyInstancesAsPossibleStay(t *testing.T) {
	_, _, l := card(t, "A100-40GB")
	all := l.arrangements()
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		there, wanted := all[random.IntN(len(all))], count(all[random.IntN(len(all))])
		most := 0
		for _, a := range all {
			if !maps.Equal(count(a), wanted) {
				continue
			}
			same := 0
			for _, p := range a {
				if slices.Contains(there, p) {
					same++
				}
			}
			most = max(most, same)
		}
		if stay, _, ok := arrange(l.places, there, wanted); !ok || len(stay) != most {
			t.Fatalf("from %v to %v: %v stay, and %d could", there, wanted, stay, most)
		}
	}
}

// The same on the card itself, one after another.
func TestLayoutsFollowEachOther(t *testing.T) {
	for _, model := range []string{"A30", "A100-40GB", "H100", "B200"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			b, uuid, l := card(t, model)
			named := map[int]string{}
			for name, id := range l.names {
				named[id] = name
			}
			all := l.arrangements()
			random := rand.New(rand.NewPCG(5, 6))
			for range 40 {
				var wanted []string
				for _, p := range all[random.IntN(len(all))] {
					wanted = append(wanted, named[p.profile])
				}
				if err := b.Layout(uuid, wanted); err != nil {
					t.Fatal(err)
				}
				m, err := b.Survey()
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, p := range m.GPUs[0].Partitions {
					got = append(got, p.Profile)
				}
				slices.Sort(got)
				slices.Sort(wanted)
				if !slices.Equal(got, wanted) {
					t.Fatalf("got %s, want %s", strings.Join(got, " "), strings.Join(wanted, " "))
				}
			}
		})
	}
}

// An instance that an interrupted attempt left without a compute instance is no device: it
// is made again.
func TestInstanceWithoutAComputeInstanceIsMadeAgain(t *testing.T) {
	b, uuid, l := card(t, "A100-40GB")
	info := l.profiles[l.names["3g.20gb"]]
	if _, ret := l.d.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: 4, Size: 4}); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if err := b.Layout(uuid, []string{"3g.20gb"}); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Survey(); err != nil || len(m.GPUs[0].Partitions) != 1 {
		t.Errorf("the GPU has %+v, %v", m.GPUs[0].Partitions, err)
	}
}
