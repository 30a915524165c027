// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"maps"
	"testing"
)

func TestParseCPUs(t *testing.T) {
	for _, test := range []struct{ list, canonical string }{
		{"", ""}, {"\n", ""}, {"0", "0"}, {"0-3,8", "0-3,8"}, {"3,1,2,0", "0-3"}, {"5-5", "5"}, {"0,2,4-5\n", "0,2,4-5"},
		{"0-1,1-2", "0-2"}, {"8191", "8191"},
	} {
		cpus, err := ParseCPUs(test.list)
		if got := FormatCPUs(cpus); err != nil || got != test.canonical {
			t.Errorf("%q: got %q, %v; want %q", test.list, got, err, test.canonical)
		}
	}
	for _, list := range []string{",", "0,", "-1", "1-", "3-1", "0-3-5", "a", "0x1", "8192", "0-8192", "0 1", "+1", "99999999999999999999"} {
		if cpus, err := ParseCPUs(list); err == nil {
			t.Errorf("%q was read as %v", list, cpus)
		}
	}
}

func TestCPUsWithin(t *testing.T) {
	for _, test := range []struct {
		wanted, shared, want string
		kept                 bool
	}{
		{"", "0-3", "0-3", true},
		{"1-2", "0-3", "1-2", true},
		{"0-7", "0-3", "0-3", true},
		{"2-5", "0-3", "2-3", true},
		{"4", "0-3", "0-3", false},
		{"4", "", "", false},
		{"", "", "", true},
	} {
		got, kept, err := CPUsWithin(test.wanted, test.shared)
		if err != nil || got != test.want || kept != test.kept {
			t.Errorf("%q within %q: got %q, %t, %v; want %q, %t", test.wanted, test.shared, got, kept, err, test.want, test.kept)
		}
	}
	for _, bad := range [][2]string{{"x", "0"}, {"0", "x"}} {
		if _, _, err := CPUsWithin(bad[0], bad[1]); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, seed := range []string{"0-3,8", "", "1,1", "7-2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		cpus, err := ParseCPUs(list)
		if err != nil {
			return
		}
		again, err := ParseCPUs(FormatCPUs(cpus))
		if err != nil || !maps.Equal(cpus, again) {
			t.Errorf("%q: read %v, wrote %q, read %v, %v", list, cpus, FormatCPUs(cpus), again, err)
		}
	})
}
