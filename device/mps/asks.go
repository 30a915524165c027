// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// asksDir has the questions of gates, asks those of one.
func asksDir(own string) string { return filepath.Join(filepath.Dir(own), "asks") }

// ask is the question of a gate: where does this process belong?
type ask struct {
	PID   int    `json:"pid"`
	Group string `json:"group"`
}

func (a ask) write(own string) error {
	text, err := json.Marshal(a)
	if err == nil {
		err = os.MkdirAll(asksDir(own), 0o700)
	}
	if err != nil {
		return err
	}
	return statedir.WriteFile(a.path(own), text, 0o600)
}

func (a ask) path(own string) string {
	return filepath.Join(asksDir(own), gpu.MPSTenantNamespace(a.Group))
}

// waits reports whether the question is there, which a keeper removes when it has answered.
func (a ask) waits(own string) bool {
	_, err := os.Lstat(a.path(own))
	return err == nil
}
