// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// The program that asks about a task's share is found by its name, behind the image's own
// programs, wherever PATH stands in the environment.
func TestTheProgramOfATaskIsOnItsPath(t *testing.T) {
	with, without := Share{Env: map[string]string{}}, Share{Env: map[string]string{}}
	with.ShowSelf("/host/dir", "/host/program")
	without.ShowSelf("/host/dir", "")
	for _, env := range [][]string{{"PATH=/bin"}, {"PATH=/bin", "Z=1"}, {"A=1", "PATH=/bin"}, {"A=1", "PATH=/bin", "XPATH=/x"}} {
		before, want := slices.Clone(env), slices.Clone(env)
		want[slices.Index(want, "PATH=/bin")] = "PATH=/bin:" + gpu.SelfBinDir
		if got := with.withSelfOnPath(env); !slices.Equal(got, want) {
			t.Errorf("%q becomes %q", before, got)
		}
		if !slices.Equal(env, before) {
			t.Errorf("%q was changed to %q", before, env)
		}
		if got := without.withSelfOnPath(before); !slices.Equal(got, before) {
			t.Errorf("without a program, %q becomes %q", before, got)
		}
	}
	if got := with.withSelfOnPath([]string{"PATH="}); got[0] != "PATH="+gpu.SelfBinDir {
		t.Errorf("an empty path becomes %q", got)
	}
	if with.Env[gpu.EnvSelfSocket] != gpu.SelfSocket {
		t.Errorf("the socket is not told: %v", with.Env)
	}
}

// What is mounted below the directory of the task's socket has a place there to be
// mounted on.
func TestPlacesInTheDirectoryOfATasksSocket(t *testing.T) {
	for _, sharing := range []gpu.Sharing{gpu.SharingMPS, gpu.SharingHAMi} {
		share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: state(uuidA, sharing)}, taskconfig.GPURequest{})
		if err != nil {
			t.Fatal(err)
		}
		share.ShowSelf("/host/dir", "/host/program")
		wantDirs, wantFiles := "mps/log mps/pipe", "bin/nomad-gpu-self init"
		if sharing == gpu.SharingHAMi {
			wantDirs, wantFiles = "hami/cache", "bin/nomad-gpu-self hami/libvgpu.so init"
		}
		dirs, files := share.SelfTargets()
		slices.Sort(dirs)
		slices.Sort(files)
		if strings.Join(dirs, " ") != wantDirs || strings.Join(files, " ") != wantFiles {
			t.Errorf("%s: directories %q, files %q", sharing, dirs, files)
		}
	}
}

func TestWhatHidesATasksSocket(t *testing.T) {
	for _, tc := range []struct {
		targets []string
		hides   string
	}{
		{nil, ""},
		{[]string{"/srv", "/run/nomad-gpux"}, ""},
		{[]string{"/srv", "/run"}, "/run"},
		{[]string{gpu.SelfDir, "/srv"}, gpu.SelfDir},
		{[]string{"/srv", gpu.SelfDir + "/x", "/run"}, gpu.SelfDir + "/x"},
	} {
		if got := HidesSelf(tc.targets); got != tc.hides {
			t.Errorf("of %q, %q hides it, want %q", tc.targets, got, tc.hides)
		}
	}
}
