package gpu

import "testing"

func TestWithinCgroup(t *testing.T) {
	v2 := []string{"0::/nomad/abc/init"}
	v1 := []string{"9:name=systemd:/nomad/abc", "4:memory:/nomad/abc", "0::/"}
	for _, tc := range []struct {
		lines  []string
		cgroup string
		want   bool
	}{
		{v2, "/nomad/abc", true},
		{v1, "/nomad/abc", true},
		{v2, "/nomad/ab", false},
		{v2, "/nomad/abc/init/deeper", false},
		{v2, "", false},
		{v2, "/", false},
		{nil, "/nomad/abc", false},
		{[]string{"garbage"}, "/nomad/abc", false},
	} {
		if got := WithinCgroup(tc.lines, tc.cgroup); got != tc.want {
			t.Errorf("WithinCgroup(%q, %q) = %v", tc.lines, tc.cgroup, got)
		}
	}
}
