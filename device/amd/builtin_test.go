// SPDX-License-Identifier: MPL-2.0

package amd

import (
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
