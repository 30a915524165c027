// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// PluginName is the plugin's name in the agent's configuration.
const PluginName = "nomad-driver-containerd"

var pluginConfig = agentconfig.Plugin{Name: PluginName, Schema: Schema, Replaces: []string{"containerd-driver"}}

// Validate checks a configuration of the agent, in a file or folder, without
// Nomad. The error names every mistake; warnings are worth reading, but not an error.
func Validate(path string) (warnings []string, err error) {
	s, err := Read(path)
	return s.Idle(), err
}

// Read reads a configuration of the agent, in a file or folder; an empty path is the
// defaults. The error names every mistake.
func Read(path string) (Settings, error) {
	var c Config
	var m taskconfig.Mistakes
	if err := addNumbers(&m, pluginConfig.Read(path, &c)); err != nil {
		return Settings{}, err
	}
	s, err := c.parse(m)
	if err != nil {
		return Settings{}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return s, nil
}

// Decode reads what Nomad hands to the plugin: the block's config, in MessagePack by the
// schema. The error names every mistake.
func Decode(packed []byte) (Settings, error) {
	var c Config
	var m taskconfig.Mistakes
	if len(packed) > 0 {
		if err := addNumbers(&m, agentconfig.Decode(packed, &c)); err != nil {
			return Settings{}, err
		}
	}
	return c.parse(m)
}

// JSON is the configuration of an agent at path as Nomad understands it, passwords
// and all.
func JSON(path string) ([]byte, error) { return pluginConfig.JSON(path) }

// Secrets are the passwords of a configuration; none of one that cannot be read.
func Secrets(path string) []string {
	s, err := Read(path)
	if err != nil {
		return nil
	}
	secrets := []string{s.Auth.Password}
	for _, registry := range s.Registries {
		secrets = append(secrets, registry.Password)
	}
	return secrets
}

// addNumbers notes values that cannot be used, beside which the rest was read, and returns
// other errors.
func addNumbers(m *taskconfig.Mistakes, err error) error {
	var values hclform.Mistakes
	if !errors.As(err, &values) {
		return err
	}
	m.AddErr("", values)
	return nil
}
