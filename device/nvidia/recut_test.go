// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// published are layouts that NVIDIA publishes for mig-parted, by model: how many instances of
// which profiles fill a card together.
var published = map[string][]map[string]int{
	"A30": {{"1g.6gb": 4}, {"1g.6gb+me": 1}, {"2g.12gb": 2}, {"2g.12gb+me": 1}, {"4g.24gb": 1}, {"1g.6gb": 2, "2g.12gb": 1}},
	"A100-40GB": {{"1g.5gb": 7}, {"1g.5gb+me": 1}, {"1g.10gb": 4}, {"2g.10gb": 3}, {"3g.20gb": 2}, {"4g.20gb": 1}, {"7g.40gb": 1},
		{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}},
	"A100-80GB": {{"1g.10gb": 7}, {"1g.10gb+me": 1}, {"1g.20gb": 4}, {"2g.20gb": 3}, {"3g.40gb": 2}, {"4g.40gb": 1}, {"7g.80gb": 1},
		{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}},
	"H100": {{"1g.10gb": 7}, {"1g.10gb+me": 1}, {"1g.20gb": 4}, {"2g.20gb": 3}, {"3g.40gb": 2}, {"4g.40gb": 1}, {"7g.80gb": 1},
		{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}},
	"H200": {{"1g.18gb": 7}, {"1g.18gb+me": 1}, {"2g.35gb": 3}, {"3g.71gb": 2}, {"4g.71gb": 1}, {"7g.141gb": 1}, {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}},
	"B200": {{"1g.23gb": 7}, {"1g.23gb+me": 1}, {"2g.45gb": 3}, {"3g.90gb": 2}, {"4g.90gb": 1}, {"7g.180gb": 1}, {"1g.23gb": 2, "2g.45gb": 1, "3g.90gb": 1}},
}

// Layouts that NVIDIA publishes have places, are made, and hold no more of their profile.
func TestPublishedLayoutsHavePlaces(t *testing.T) {
	for model, layouts := range published {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			b, uuid, _ := card(t, model)
			var before []gpu.MIGPlace
			for _, layout := range layouts {
				profiles, _, err := b.MIGPlaces(uuid)
				if err != nil {
					t.Fatal(err)
				}
				places := find(profiles, layout, nil)
				if places == nil {
					t.Fatalf("%v has no places among %+v", layout, profiles)
				}
				if err := b.Recut(uuid, before, places); err != nil {
					t.Fatalf("%v: %v", layout, err)
				}
				if err := b.Recut(uuid, nil, places); err != nil {
					t.Fatalf("%v a second time: %v", layout, err)
				}
				_, there, err := b.MIGPlaces(uuid)
				if err != nil || len(there) != len(places) {
					t.Fatalf("%v: there is %+v, %v", layout, there, err)
				}
				for name := range layout {
					if len(layout) == 1 {
						if more := find(profiles, map[string]int{name: layout[name] + 1}, nil); more != nil {
							t.Errorf("%d of %s have places %v", layout[name]+1, name, more)
						}
					}
				}
				before = places
			}
		})
	}
}

// find looks for places of all instances; nil where there are none.
func find(profiles []gpu.MIGProfile, wanted map[string]int, have []gpu.MIGPlace) []gpu.MIGPlace {
	for _, p := range profiles {
		n := 0
		for _, at := range have {
			if at.Profile == p.Name {
				n++
			}
		}
		if n >= wanted[p.Name] {
			continue
		}
		for _, start := range p.Starts {
			next := append(slices.Clip(have), gpu.MIGPlace{Profile: p.Name, Start: start})
			if gpu.CheckMIGPlaces(profiles, next) == nil {
				if all := find(profiles, wanted, next); all != nil {
					return all
				}
			}
		}
		return nil
	}
	if len(have) == 0 {
		return nil // the card has no such profile
	}
	return have
}
