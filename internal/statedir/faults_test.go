// SPDX-License-Identifier: MPL-2.0

package statedir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// blocked makes a path one that cannot be read, replaced or removed as a file.
func blocked(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(path, "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
}

// What cannot be done is an error that says what and where, and leaves nothing.
func TestFaults(t *testing.T) {
	for _, row := range []struct {
		name string
		act  func(path string) error
		says []string
	}{
		{"no boot ID", func(path string) error { _, err := Open(path, ""); return err }, []string{"open state directory", "boot ID is empty"}},
		{"a file in place of the directory", func(path string) error {
			write(t, filepath.Join(path, "f"), "")
			_, err := Open(filepath.Join(path, "f"), "b")
			return err
		}, []string{"open state directory", "/f"}},
		{"no directory", func(path string) error { return WriteFile(filepath.Join(path, "none", "f"), nil, 0o600) }, []string{"write ", "/none/f: ", "no such file"}},
		{"a directory in place of the file", func(path string) error {
			blocked(t, filepath.Join(path, "f"))
			return WriteFile(filepath.Join(path, "f"), []byte("x"), 0o600)
		}, []string{"write ", "/f: rename"}},
		{"no content", func(path string) error { return writeJSON(filepath.Join(path, "f"), func() {}) }, []string{"encode state", "/f: "}},
		{"a lease that cannot be removed", func(path string) error {
			blocked(t, filepath.Join(path, "leases", "l.json"))
			return open(t, path, "b").RemoveLease("l")
		}, []string{"remove state", "l.json"}},
		{"a device that cannot be removed", func(path string) error {
			blocked(t, filepath.Join(path, "gpus", "G.json"))
			return open(t, path, "b").RemoveGPU("G")
		}, []string{"remove state", "G.json"}},
		{"leases that cannot be listed", func(path string) error {
			d := open(t, path, "b")
			if err := os.Remove(filepath.Join(path, "leases")); err != nil {
				return err
			}
			_, err := d.Leases()
			return err
		}, []string{"list leases"}},
		{"a lease that cannot be read", func(path string) error {
			blocked(t, filepath.Join(path, "leases", "l.json"))
			_, err := open(t, path, "b").Lease("l")
			return err
		}, []string{"read state", "l.json"}},
		{"a lease that is not JSON", func(path string) error {
			d := open(t, path, "b")
			write(t, filepath.Join(path, "leases", "l.json"), `{"version":1,"boot_id":"b",`)
			_, err := d.Lease("l")
			return err
		}, []string{"read state", "l.json"}},
		{"a lease that is something else", func(path string) error {
			d := open(t, path, "b")
			write(t, filepath.Join(path, "leases", "l.json"), `{"version":1,"boot_id":"b","holdings":7}`)
			_, err := d.Lease("l")
			return err
		}, []string{"read state", "l.json", "holdings"}},
		{"a lease without a version", func(path string) error {
			d := open(t, path, "b")
			write(t, filepath.Join(path, "leases", "l.json"), `{"boot_id":"b"}`)
			_, err := d.Lease("l")
			return err
		}, []string{"has version 0, this release reads 1 to"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := t.TempDir()
			err := row.act(path)
			if err == nil || errors.Is(err, ErrNotFound) {
				t.Fatalf("got %v", err)
			}
			for _, text := range row.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(path, ".*")); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
}

// What is filled wrongly is not renamed into place.
func TestFillFails(t *testing.T) {
	file := func(flags int) *os.File {
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	closed := file(os.O_RDWR)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe() // cannot be synced
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	for name, f := range map[string]*os.File{"read-only": file(os.O_RDONLY), "closed": closed, "a pipe": write} {
		if err := fill(f, []byte("x"), 0o600); err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: it stays open: %v", name, err)
		}
	}
	if err := fill(closed, nil, 0o600); err == nil {
		t.Error("closed, nothing to write: no error")
	}
	if err := syncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("sync of no directory: %v", err)
	}
}

// Only root reads what tells who runs what.
func TestModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	d := open(t, path, "b")
	if err := errors.Join(d.WriteGPU(gpu.GPUState{UUID: "G"}), WriteFile(filepath.Join(path, "open"), []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "gpus": 0o700, "leases": 0o700, "cdi": 0o700, "gpus/G.json": 0o600, "open": 0o644} {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
	if d.CDIDir() != filepath.Join(path, "cdi") {
		t.Errorf("CDI specs are in %s", d.CDIDir())
	}
}

// A state that changed is written, and what is no state is none.
func TestWriteReplaces(t *testing.T) {
	path := t.TempDir()
	d := open(t, path, "b")
	for _, slices := range []int{1, 2} {
		if err := d.WriteGPU(gpu.GPUState{UUID: "G", Slices: slices}); err != nil {
			t.Fatal(err)
		}
		if got, err := d.GPU("G"); err != nil || got.Slices != slices {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	write(t, filepath.Join(path, "gpus", "README"), "not a state")
	if all, err := d.GPUs(); err != nil || len(all) != 1 {
		t.Errorf("got %v, %v", all, err)
	}
	for range 2 {
		if err := d.WriteNotices(gpu.Notices{}); err != nil {
			t.Fatal(err)
		}
	}
	notices, err := d.Notices()
	if err != nil || notices.Version != gpu.StateVersion || notices.BootID != "b" {
		t.Errorf("got %+v, %v", notices, err)
	}
	if err := d.WriteUsage(gpu.Usage{}); err != nil {
		t.Fatal(err)
	}
	usage, err := d.Usage()
	if err != nil || usage.Version != gpu.StateVersion || usage.BootID != "b" {
		t.Errorf("got %+v, %v", usage, err)
	}
	if err := d.WriteDriverCounts(gpu.NewDriverCounts()); err != nil {
		t.Fatal(err)
	}
	counts, err := d.DriverCounts()
	if err != nil || counts.Version != gpu.StateVersion || counts.BootID != "b" {
		t.Errorf("got %+v, %v", counts, err)
	}
	boot, err := BootID()
	if err != nil || len(boot) != 36 {
		t.Errorf("boot ID %q, %v", boot, err)
	}
}
