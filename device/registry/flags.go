// SPDX-License-Identifier: MPL-2.0

package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Flags are what an operator says of devices from the command line: one
// file per UUID below the data directory, so that they outlive a reboot and can
// be set while the plugin runs.
type Flags struct{ dir string }

// OpenCordons finds the devices that are to take no new work.
func OpenCordons(dataDir string) Flags {
	return Flags{filepath.Join(dataDir, "cordons")}
}

// OpenReleases finds the devices that the plugin is to let go of; what a flag says
// is ReleaseReset, or nothing. The plugin takes each away when that is done.
func OpenReleases(dataDir string) Flags {
	return Flags{filepath.Join(dataDir, "releases")}
}

// ReleaseReset asks for a reset of the GPU.
const ReleaseReset = "reset"

// OpenForgotten finds the devices that will not come back; the plugin takes each
// mark away when it has forgotten the device.
func OpenForgotten(dataDir string) Flags {
	return Flags{filepath.Join(dataDir, "forgotten")}
}

// Add marks a device; reason is for people.
func (m Flags) Add(uuid, reason string) error {
	path, err := m.file(uuid)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("mark %s: %w", uuid, err)
	}
	return statedir.WriteFile(path, []byte(reason+"\n"), 0o600)
}

// Remove takes a mark away; if there is none, it does nothing.
func (m Flags) Remove(uuid string) error {
	path, err := m.file(uuid)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take the mark off %s: %w", uuid, err)
	}
	return nil
}

// Has reports whether a device is marked.
func (m Flags) Has(uuid string) bool {
	path, err := m.file(uuid)
	if err != nil {
		return false
	}
	_, err = os.Lstat(path)
	return err == nil
}

// All returns the reason by UUID.
func (m Flags) All() (map[string]string, error) {
	entries, err := os.ReadDir(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list marks: %w", err)
	}
	all := map[string]string{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue // a file that is being written
		}
		reason, err := os.ReadFile(filepath.Join(m.dir, entry.Name()))
		if err != nil {
			continue // taken away in this moment
		}
		all[entry.Name()] = strings.TrimSpace(string(reason))
	}
	return all, nil
}

func (m Flags) file(uuid string) (string, error) {
	if err := checkUUID(uuid); err != nil {
		return "", err
	}
	return filepath.Join(m.dir, uuid), nil
}

// checkUUID refuses a text that does not look like the UUID of a device.
func checkUUID(uuid string) error {
	if !strings.HasPrefix(uuid, "GPU-") && !strings.HasPrefix(uuid, "MIG-") || strings.ContainsAny(uuid, "/.") {
		return fmt.Errorf("%q is not the UUID of a GPU or MIG instance", uuid)
	}
	return nil
}
