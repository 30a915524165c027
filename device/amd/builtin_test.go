// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// Graphics that are built into a processor are no GPUs for tasks.
func TestBuiltInGraphicsAreLeftOut(t *testing.T) {
	for name, tc := range map[string]struct {
		properties, bank string
		gpus             int
	}{
		"a card":            {"unique_id 77\n", "heap_type 1\nsize_in_bytes 2147483648\n", 1},
		"a card without ID": {"", "heap_type 1\nsize_in_bytes 17179869184\n", 1},
		"built in":          {"", "heap_type 1\nsize_in_bytes 536870912\n", 0},
		"with its cores":    {"unique_id 77\ncpu_cores_count 8\n", "heap_type 1\nsize_in_bytes 17179869184\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range map[string]string{
				"properties": "simd_count 4\nvendor_id 4098\nlocation_id 256\ndrm_render_minor 128\n" + tc.properties, "mem_banks/0/properties": tc.bank,
			} {
				path = filepath.Join(root, kfdNodes, "1", path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m, err := New(sysfs.Options{Root: root, Timeout: time.Minute}).Survey()
			if err != nil || len(m.GPUs) != tc.gpus {
				t.Errorf("%d GPUs, %v", len(m.GPUs), err)
			}
		})
	}
}

// A survey while the driver is being unloaded, when the GPU's own files are gone and KFD's are not
// yet, finds no driver: it does not find partitions of another mode, which would be other devices.
func TestASurveyDuringAnUnloadFindsNoDriver(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for n, fn := range []string{"0", "1"} {
		write(filepath.Join(kfdNodes, fn, "properties"), "simd_count 4\nvendor_id 4098\nlocation_id "+[]string{"256", "257"}[n]+"\ndrm_render_minor 12"+fn+"\nunique_id 77\n")
		write(filepath.Join(kfdNodes, fn, "mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 17179869184\n")
	}
	const mode = "sys/bus/pci/devices/0000:01:00.0/current_compute_partition"
	b := New(sysfs.Options{Root: root, Timeout: time.Minute})
	survey := func() string {
		m, err := b.Survey()
		if err != nil || len(m.GPUs) != 1 || len(m.GPUs[0].Partitions) != 2 {
			return fmt.Sprintf("%v, %d GPUs", err, len(m.GPUs))
		}
		return m.GPUs[0].Partitions[0].Profile
	}
	if got := survey(); got != "x2" { // of a kernel that never tells
		t.Fatalf("found %s", got)
	}
	write(mode, "DPX\n")
	if got := survey(); got != "dpx" {
		t.Fatalf("found %s", got)
	}
	if err := os.Remove(filepath.Join(root, mode)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.Survey(); !errors.Is(err, errAbsent) {
			t.Errorf("found %s, want no driver", survey())
		}
	}
	write(mode, "DPX\n")
	if got := survey(); got != "dpx" {
		t.Errorf("found %s when it is loaded again", got)
	}
}
