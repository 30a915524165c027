// SPDX-License-Identifier: MPL-2.0

package config

// NamedFile is a file that the configuration names, and the key that does.
type NamedFile struct{ Key, Path string }

// Files are those that the service reads when it starts, in the order of the documentation.
func (c *Config) Files() []NamedFile {
	var named []NamedFile
	for _, f := range []NamedFile{
		{"nomad.token_file", c.Nomad.TokenFile}, {"nomad.ca_file", c.Nomad.CAFile}, {"nomad.cert_file", c.Nomad.CertFile}, {"nomad.key_file", c.Nomad.KeyFile},
		{"listen.cert_file", c.Listen.CertFile}, {"listen.key_file", c.Listen.KeyFile}, {"listen.client_ca_file", c.Listen.ClientCAFile}, {"listen.ca_file", c.Listen.CAFile},
		{"telemetry.traces.ca_file", c.Traces.CAFile},
	} {
		if f.Path != "" {
			named = append(named, f)
		}
	}
	return named
}
