// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
)

// PluginName is the plugin's name, and that of its binary.
const PluginName = "nomad-device-gpu"

var pluginConfig = agentconfig.Plugin{Name: PluginName, Schema: Schema, Replaces: []string{"nomad-device-nvidia", "nvidia-gpu"}}

// Read reads a configuration from a file or folder, without Nomad. An
// empty path is the default configuration.
func Read(path string) (*Config, error) {
	var raw rawConfig
	numbers, err := split(pluginConfig.Read(path, &raw))
	if err != nil {
		return nil, err
	}
	c, err := parse(raw)
	if err := errors.Join(numbers, err); err != nil {
		return nil, fmt.Errorf("read configuration %s:\n%w", path, err)
	}
	return c, nil
}

// split tells numbers that cannot be used, beside which the rest was read, from other
// errors.
func split(err error) (numbers, other error) {
	var mistakes hclform.Mistakes
	if errors.As(err, &mistakes) {
		return mistakes, nil
	}
	return nil, err
}

// Decode reads and checks what Nomad hands to the plugin: the block's config, in
// MessagePack by the schema; empty is the default configuration.
func Decode(text []byte) (*Config, error) {
	var raw rawConfig
	var numbers error
	if len(text) > 0 {
		var err error
		if numbers, err = split(agentconfig.Decode(text, &raw)); err != nil {
			return nil, fmt.Errorf("plugin configuration: %w", err)
		}
	}
	c, err := parse(raw)
	if err := errors.Join(numbers, err); err != nil {
		return nil, fmt.Errorf("plugin configuration: %w", err)
	}
	return c, nil
}

// JSON is the configuration of an agent at path as Nomad understands it.
func JSON(path string) ([]byte, error) { return pluginConfig.JSON(path) }

// StateFiles are the files and folders that hold the state of a node: the state files
// of plugin and driver, the logs of MPS, and the plugin's records. The driver's
// records of tasks are not among them.
func StateFiles(path string) ([]string, error) {
	c, err := Read(path)
	if err != nil {
		return nil, err
	}
	logs, err := filepath.Glob(filepath.Join(c.StateDir, "mps", "*", "log"))
	if err != nil {
		return nil, err
	}
	files := append(logs, c.DataDir)
	for _, name := range []string{"gpus", "leases", "cdi", "usage.json", "notices.json"} {
		files = append(files, filepath.Join(c.StateDir, name))
	}
	return files, nil
}
