// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
)

// Every share of every GPU gets at least its multiprocessors, and two more at most; a
// percentage is rounded down to two of them, as Dynamo has measured.
func TestPercentagesGiveNoLessThanTheShare(t *testing.T) {
	for _, multiprocessors := range []int{14, 40, 46, 84, 108, 132, 142, 148, 160, 188} {
		for milli := int64(1); milli <= 1000; milli++ {
			percent := PercentFor(milli, multiprocessors)
			got, want := int64(multiprocessors*percent/100&^1)*1000, milli*int64(multiprocessors)
			if percent < 1 || percent > 100 || got < want || got > want+4000+int64(multiprocessors)*10 {
				t.Fatalf("%d of 1000 of %d: %d %% are %d thousandths of one, not %d", milli, multiprocessors, percent, got, want)
			}
		}
	}
	if PercentFor(251, 0) != 26 || LimitsOf(5, 0, 132) != (Limits{MemoryMiB: 5}) || LimitsOf(0, 1000, 132).Percent != 100 {
		t.Error("limits are not rounded where the multiprocessors are not known, or made up")
	}
}

func TestPlaces(t *testing.T) {
	p := PlacesOf(t.TempDir() + "/pipe")
	if p.Exist() {
		t.Error("there are places from the beginning")
	}
	if err := p.Begin(); err != nil || !p.Exist() {
		t.Fatal(err)
	}
	for name, group := range map[string]string{"a": "/nomad/a", "b": "/nomad/a/b", "c": "/nomad/ab"} {
		if err := p.Put(name, group); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", "/"} {
		if p.Put("d", bad) == nil {
			t.Errorf("everybody has a place: %q", bad)
		}
	}
	for path, want := range map[string]string{"/nomad/a": "a", "/nomad/a/x": "a", "/nomad/a/b/c": "b", "/nomad/ab": "c", "/nomad": "", "/nomad/abc": ""} {
		if got, err := p.Find([]cgroup.Group{{Path: "/"}, {Path: path}}); err != nil || got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := p.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	if all, err := p.All(); err != nil || len(all) > 0 {
		t.Errorf("an earlier daemon's are left: %v, %v", all, err)
	}
}
