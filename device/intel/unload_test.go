// SPDX-License-Identifier: MPL-2.0

package intel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// A survey while the driver is being loaded or unloaded, when a card has its node and not all of its
// other files, finds no card of another name, and no virtual functions of another profile: those would
// be other devices. What the driver has not told for long, it does not tell.
func TestASurveyDuringAnUnloadFindsNoOtherDevices(t *testing.T) {
	root, now := t.TempDir(), time.Unix(1e9, 0)
	const card, function = "0000:03:00.0", "0000:03:00.1"
	write := func(dir, name, text string) {
		t.Helper()
		path := filepath.Join(root, "sys/bus/pci/devices", dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(dir, name, to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(root, "sys/bus/pci/devices", dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	bind := func(dir string, minor int) {
		t.Helper()
		for name, text := range map[string]string{"vendor": "0x8086", "device": "0x56c0", "class": "0x038000", fmt.Sprintf("drm/card%d/dev", minor): "", fmt.Sprintf("drm/renderD%d/dev", 128+minor): ""} {
			write(dir, name, text)
		}
		link(dir, "driver", "../drivers/i915")
	}
	if err := os.MkdirAll(filepath.Join(root, "sys/module/i915"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := New(sysfs.Options{Root: root, Timeout: time.Minute, Now: func() time.Time { return now }})
	survey := func() string {
		t.Helper()
		now = now.Add(time.Second)
		m, err := b.Survey()
		if err != nil || len(m.GPUs) == 0 {
			return fmt.Sprintf("%d GPUs, %v", len(m.GPUs), err)
		}
		said := m.GPUs[0].UUID
		for _, p := range m.GPUs[0].Partitions {
			said += " " + p.Profile
		}
		return said
	}
	const none = "0 GPUs, <nil>"
	if got := survey(); got != none {
		t.Fatalf("found %s", got)
	}
	bind(card, 0)
	if got := survey(); got != none {
		t.Errorf("while it is being loaded: found %s", got)
	}
	write(card, "unique_id", "0x1234")
	write(card, "sriov_numvfs", "1")
	write(card, "drm/card0/iov/vf1/gt/lmem_quota", fmt.Sprint(4<<30))
	bind(function, 1)
	link(function, "physfn", "../"+card)
	link(card, "virtfn0", "../"+function)
	loaded := survey()
	if loaded != b.uuid(card)+" 4g" {
		t.Fatalf("found %s", loaded)
	}
	for _, file := range []string{"drm/card0/iov/vf1/gt/lmem_quota", "unique_id"} {
		path := filepath.Join(root, "sys/bus/pci/devices", card, file)
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := survey(); got != none {
				t.Errorf("without %s: found %s", file, got)
			}
		}
		write(card, file, string(text))
		if got := survey(); got != loaded {
			t.Errorf("loaded again: found %s, not %s", got, loaded)
		}
	}
	if err := os.Remove(filepath.Join(root, "sys/bus/pci/devices", card, "unique_id")); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		survey()
	}
	if got := survey(); got == none || got == loaded {
		t.Errorf("a driver that tells no serial number any more: found %s", got)
	}
}
