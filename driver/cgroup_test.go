package driver

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestCgroupOfNobodyIsNoDirectory(t *testing.T) {
	for _, path := range []string{"", "/", "//", "/.", "/..", "/a/..", "/nomad-gpu", "/nomad-gpu/", "/nomad-gpu/.", "/nomad-gpu/x/.."} {
		must.SliceEmpty(t, cgroupDirs(path, false), must.Sprint(path))
		must.SliceEmpty(t, cgroupDirs(path, true), must.Sprint(path))
	}
}
