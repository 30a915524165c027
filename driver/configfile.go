package driver

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
)

// PluginName is the plugin's name in the agent's configuration.
const PluginName = "nomad-driver-containerd"

var pluginConfig = agentconfig.Plugin{Name: PluginName, Schema: configSpec, Replaces: []string{"containerd-driver"}}

// ValidateFile checks a configuration of the agent, in a file or folder, without
// Nomad. The error names every mistake.
func ValidateFile(path string) error {
	_, err := readSettings(path)
	return err
}

func readSettings(path string) (settings, error) {
	var c Config
	if err := pluginConfig.Read(path, &c); err != nil {
		return settings{}, err
	}
	s, err := c.parse()
	if err != nil {
		return settings{}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return s, nil
}

// ConfigJSON is the configuration of an agent at path as Nomad understands it, passwords
// and all.
func ConfigJSON(path string) ([]byte, error) { return pluginConfig.JSON(path) }

// Secrets are the passwords of a configuration; none of one that cannot be read.
func Secrets(path string) []string {
	s, err := readSettings(path)
	if err != nil {
		return nil
	}
	secrets := []string{s.Auth.Password}
	for _, registry := range s.Registries {
		secrets = append(secrets, registry.Password)
	}
	return secrets
}
