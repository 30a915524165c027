package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Cordons are the devices that an operator has taken out of service by hand:
// one file per UUID below the data directory, so that they outlive a reboot and
// can be changed while the plugin runs.
type Cordons struct{ dir string }

// OpenCordons finds the cordons of a data directory.
func OpenCordons(dataDir string) Cordons { return Cordons{filepath.Join(dataDir, "cordons")} }

// Add cordons a device; reason is for people.
func (c Cordons) Add(uuid, reason string) error {
	path, err := c.file(uuid)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("cordon %s: %w", uuid, err)
	}
	return statedir.WriteFile(path, []byte(reason+"\n"), 0o600)
}

// Remove ends a cordon; one that is not there is no error.
func (c Cordons) Remove(uuid string) error {
	path, err := c.file(uuid)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("uncordon %s: %w", uuid, err)
	}
	return nil
}

// All returns the reason by UUID.
func (c Cordons) All() (map[string]string, error) {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cordons: %w", err)
	}
	all := map[string]string{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue // a file that is being written
		}
		reason, err := os.ReadFile(filepath.Join(c.dir, entry.Name()))
		if err != nil {
			continue // uncordoned in this moment
		}
		all[entry.Name()] = strings.TrimSpace(string(reason))
	}
	return all, nil
}

func (c Cordons) file(uuid string) (string, error) {
	if !strings.HasPrefix(uuid, "GPU-") && !strings.HasPrefix(uuid, "MIG-") || strings.ContainsAny(uuid, "/.") {
		return "", fmt.Errorf("%q is not the UUID of a GPU or MIG instance", uuid)
	}
	return filepath.Join(c.dir, uuid), nil
}
