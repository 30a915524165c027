// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// placed is a GPU instance, there or to be made: its profile, and its place on the
// GPU's memory slices.
type placed struct {
	profile int
	at      nvml.GpuInstancePlacement
	// gi is the instance that is there. whole says that it has what a declared instance
	// has, one compute instance that fills it.
	gi    nvml.GpuInstance
	whole bool
}

// arrange finds places for all wanted instances, counted by profile: it returns those that
// stay and those to be made. As many instances stay as leave room for the rest, none if
// need be. It is false where no places hold all of them together.
//
// The driver does not move instances: a GPU with free slices enough may have no place for a
// profile, whose places begin at certain slices only.
func arrange(places map[int][]nvml.GpuInstancePlacement, there []placed, wanted map[int]int) (stay, add []placed, ok bool) {
	// A GPU has 7 instances at most, so all choices of those that stay are few.
	choices := make([]uint, 1<<len(there))
	for i := range choices {
		choices[i] = uint(i)
	}
	slices.SortStableFunc(choices, func(a, b uint) int { return cmp.Compare(bits.OnesCount(b), bits.OnesCount(a)) })
	for _, choice := range choices {
		missing := map[int]int{}
		for profile, count := range wanted {
			missing[profile] = count
		}
		stay, fits := []placed(nil), true
		for i, p := range there {
			if choice&(1<<i) == 0 {
				continue
			}
			missing[p.profile]--
			fits = fits && p.whole && missing[p.profile] >= 0
			stay = append(stay, p)
		}
		if !fits {
			continue
		}
		if add, ok := place(places, stay, largestFirst(places, missing)); ok {
			return stay, add, true
		}
	}
	return nil, nil, false
}

// largestFirst lists each missing instance's profile, those that take the most slices first.
func largestFirst(places map[int][]nvml.GpuInstancePlacement, missing map[int]int) []int {
	var all []int
	for profile, count := range missing {
		for range count {
			all = append(all, profile)
		}
	}
	size := func(profile int) uint32 {
		if len(places[profile]) == 0 {
			return 0
		}
		return places[profile][0].Size
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Or(cmp.Compare(size(b), size(a)), cmp.Compare(a, b)) })
	return all
}

// place finds places for all profiles beside instances that stay, by trying.
func place(places map[int][]nvml.GpuInstancePlacement, beside []placed, profiles []int) ([]placed, bool) {
	if len(profiles) == 0 {
		return nil, true
	}
	for _, at := range places[profiles[0]] {
		if slices.ContainsFunc(beside, func(p placed) bool { return overlap(p.at, at) }) {
			continue
		}
		one := placed{profile: profiles[0], at: at}
		if rest, ok := place(places, append(slices.Clip(beside), one), profiles[1:]); ok {
			return append([]placed{one}, rest...), true
		}
	}
	return nil, false
}

func overlap(a, b nvml.GpuInstancePlacement) bool {
	return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size
}
