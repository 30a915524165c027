// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// settings is what software did to a GPU: the part of the hardware's state that
// a reboot forgets.
type settings struct {
	MIG       bool       `json:"mig"`
	Instances []instance `json:"instances,omitempty"`
	Timeslice string     `json:"timeslice,omitempty"`
	// ComputeMode is NVML's number; 0 lets every program in.
	ComputeMode int32 `json:"compute_mode,omitempty"`
	// Mode is a card's partition mode.
	Mode string `json:"mode,omitempty"`
}

// hardware keeps the settings of all GPUs in hardware.json.
type hardware struct {
	path   string
	bootID string

	mu   sync.Mutex
	gpus map[string]settings
}

type hardwareFile struct {
	Version int                 `json:"version"`
	BootID  string              `json:"boot_id"`
	GPUs    map[string]settings `json:"gpus"`
}

const hardwareVersion = 1

// openHardware reads the settings, or makes those of a fresh boot: the MIG
// instances that the topology file lays out.
func openHardware(dir, bootID string, t *Topology) (*hardware, error) {
	return openSettings(filepath.Join(dir, "hardware.json"), bootID, func(h *hardware) error {
		for i, g := range t.GPUs {
			if _, ok := h.gpus[t.UUID(i)]; ok {
				continue
			}
			placed, err := layOut(g.product, g.MIG)
			if err != nil {
				return err
			}
			h.gpus[t.UUID(i)] = settings{MIG: len(placed) > 0, Instances: placed}
		}
		return nil
	})
}

// openSettings reads a file of settings; fresh fills in those that are not there.
func openSettings(path, bootID string, fresh func(*hardware) error) (*hardware, error) {
	h := &hardware{path: path, bootID: bootID, gpus: map[string]settings{}}
	var file hardwareFile
	text, err := os.ReadFile(h.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read simulated hardware: %w", err)
	default:
		if err := json.Unmarshal(text, &file); err != nil {
			return nil, fmt.Errorf("read simulated hardware %s: %w", h.path, err)
		}
	}
	if file.BootID == bootID && file.GPUs != nil {
		h.gpus = file.GPUs
	}
	if err := fresh(h); err != nil {
		return nil, err
	}
	return h, h.save()
}

func (h *hardware) get(uuid string) settings {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gpus[uuid]
}

func (h *hardware) change(uuid string, change func(*settings)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.gpus[uuid]
	change(&s)
	h.gpus[uuid] = s
	return h.save()
}

func (h *hardware) save() error {
	text, err := json.MarshalIndent(hardwareFile{hardwareVersion, h.bootID, h.gpus}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode simulated hardware: %w", err)
	}
	if now, err := os.ReadFile(h.path); err == nil && bytes.Equal(now, text) {
		return nil // another process may be about to change it
	}
	return statedir.WriteFile(h.path, text, 0o600)
}
