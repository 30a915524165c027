// SPDX-License-Identifier: MPL-2.0

package statedir

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func open(t *testing.T, path, boot string) *Dir {
	t.Helper()
	d, err := Open(path, boot)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestStatesRoundTrip(t *testing.T) {
	d := open(t, t.TempDir(), "boot-1")
	state := gpu.GPUState{UUID: "GPU-1", Mode: gpu.ModeSlice, Slices: 79, MPS: &gpu.MPSState{PipeDir: "/p", Ready: true}}
	lease := gpu.Lease{ID: gpu.LeaseID("a", "t"), Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: "GPU-1", Share: gpu.Share{MemoryMiB: 8192}}}}
	usage := gpu.Usage{Tasks: []gpu.TaskUsage{{LeaseID: lease.ID, UUID: "GPU-1", MemoryMiB: 7}}}
	if err := errors.Join(d.WriteGPU(state), d.WriteLease(lease), d.WriteUsage(usage)); err != nil {
		t.Fatal(err)
	}
	state.Version, state.BootID = 1, "boot-1"
	if got, err := d.GPU("GPU-1"); err != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("GPU: %+v, %v", got, err)
	}
	lease.Version, lease.BootID = 1, "boot-1"
	if got, err := d.Leases(); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], lease) {
		t.Errorf("leases: %+v, %v", got, err)
	}
	if got, err := d.Usage(); err != nil || !reflect.DeepEqual(got.Tasks, usage.Tasks) {
		t.Errorf("usage: %+v, %v", got, err)
	}
}

func TestStateOfAnotherBootIsAbsent(t *testing.T) {
	path := t.TempDir()
	if err := open(t, path, "boot-1").WriteLease(gpu.Lease{ID: "a.t"}); err != nil {
		t.Fatal(err)
	}
	after := open(t, path, "boot-2")
	if _, err := after.Lease("a.t"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if leases, err := after.Leases(); err != nil || len(leases) != 0 {
		t.Errorf("got %v, %v", leases, err)
	}
}

func TestUnreadableFilesAreNamedAndHideNothingElse(t *testing.T) {
	path := t.TempDir()
	d := open(t, path, "b")
	if err := d.WriteLease(gpu.Lease{ID: "good.t"}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"torn.t": `{"version":`, "future.t": `{"version":99,"boot_id":"b"}`} {
		if err := os.WriteFile(filepath.Join(path, "leases", name+".json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leases, err := d.Leases()
	if len(leases) != 1 || err == nil || !strings.Contains(err.Error(), "torn.t") || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("got %v, %v", leases, err)
	}
}

func TestWriteLeavesAnUnchangedFileAlone(t *testing.T) {
	path := t.TempDir()
	d := open(t, path, "b")
	file := filepath.Join(path, "gpus", "GPU-1.json")
	var inodes []os.FileInfo
	for range 2 {
		if err := d.WriteGPU(gpu.GPUState{UUID: "GPU-1"}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, info)
	}
	if !os.SameFile(inodes[0], inodes[1]) {
		t.Error("an unchanged state was written again")
	}
}

func TestRemoveIsIdempotent(t *testing.T) {
	d := open(t, t.TempDir(), "b")
	if err := errors.Join(d.WriteGPU(gpu.GPUState{UUID: "G"}), d.RemoveGPU("G"), d.RemoveGPU("G"), d.RemoveLease("x")); err != nil {
		t.Error(err)
	}
	if _, err := d.GPU("G"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
