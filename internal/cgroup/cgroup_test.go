// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOf(t *testing.T) {
	groups, err := Of(os.Getpid())
	if err != nil || len(groups) == 0 {
		t.Fatalf("got %q, %v", groups, err)
	}
	for _, g := range groups {
		if !strings.HasPrefix(g.Path, "/") || strings.TrimSpace(g.Path) != g.Path {
			t.Errorf("%+v has no path", g)
		}
	}
	for _, pid := range []int{0, -1} {
		if groups, err := Of(pid); !errors.Is(err, fs.ErrNotExist) || groups != nil {
			t.Errorf("process %d: got %q, %v", pid, groups, err)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string][]Group{
		"":                               nil,
		"nonsense\n0:\n":                 nil,
		"0::/\n":                         {{nil, "/"}},
		"0::/nomad/a":                    {{nil, "/nomad/a"}},
		"0::/with:colons::and spaces \n": {{nil, "/with:colons::and spaces "}},
		"4:cpu,cpuacct:/a\n1:name=systemd:/b.scope\n0::/c\n": {{[]string{"cpu", "cpuacct"}, "/a"}, {[]string{"name=systemd"}, "/b.scope"}, {nil, "/c"}},
	} {
		groups := Parse(text)
		if diff := cmp.Diff(want, groups); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
		for _, g := range groups {
			if g.Unified() != (g.Controllers == nil) || g.Has("cpuacct") != (g.Path == "/a") || g.Has("name=systemd") != (g.Path == "/b.scope") || g.Has("") {
				t.Errorf("%+v is of another hierarchy", g)
			}
		}
	}
}

func TestWithin(t *testing.T) {
	const v2, v1 = "0::/nomad/abc/init", "9:name=systemd:/nomad/abc\n4:memory:/nomad/abc\n0::/"
	for _, tc := range []struct {
		text, path string
		want       bool
	}{
		{v2, "/nomad/abc", true},
		{v2, "/nomad/abc/", true},
		{v1, "/nomad/abc", true},
		{v1, "/nomad/abc/", true},
		{v2, "/nomad/ab", false},
		{v2, "/nomad/abc/init/deeper", false},
		{v2, "", false},
		{v2, "/", false},
		{v2, "//", false},
		{"", "/nomad/abc", false},
	} {
		if got := Within(Parse(tc.text), tc.path); got != tc.want {
			t.Errorf("a process of %q within %q: %t", tc.text, tc.path, got)
		}
	}
}
