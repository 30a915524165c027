// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// A task called ".." would have every allocation of the node for its directory.
func TestHostileTaskNames(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		named := func(name string) func(*drivers.TaskConfig) { return func(cfg *drivers.TaskConfig) { cfg.Name = name } }
		for _, name := range []string{".", "..", "alloc", "a\nb", "a\x1b[2Jb", "a\u202eb", "a\x7f", "a/b"} {
			cfg := e.quietTask(mounting(taskconfig.MountConfig{Source: "local", Target: "/x"}, "true"))
			named(name)(cfg)
			e.refused(cfg, "is not a name")
		}
		for _, name := range []string{"50%", "%2e%2e", "...", "a b", "größe", "-x", "%s"} {
			cfg := e.task(defaultTaskConfig("echo", "it runs"), named(name))
			e.start(cfg)
			e.wait(cfg.ID)
			must.Eq(t, "it runs\n", e.logs(cfg, "stdout"), must.Sprint(name))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// A second line in a file of the network would be another author's entry.
func TestHostileNames(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		for name, change := range map[string]func(*drivers.TaskConfig){
			"dns: searches": func(cfg *drivers.TaskConfig) {
				cfg.DNS = &drivers.DNSConfig{Searches: []string{"a\nnameserver 192.0.2.1"}}
			},
			"dns: servers": func(cfg *drivers.TaskConfig) { cfg.DNS = &drivers.DNSConfig{Servers: []string{"192.0.2.1\rx"}} },
			"dns: options": func(cfg *drivers.TaskConfig) {
				cfg.DNS = &drivers.DNSConfig{Options: []string{"ndots:1\u2028x"}}
			},
			"hostname": func(cfg *drivers.TaskConfig) {
				cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{HostsConfig: &drivers.HostsConfig{Hostname: "a\n192.0.2.1 bank", Address: "192.0.2.2"}}
			},
		} {
			e.refused(e.quietTask(defaultTaskConfig("true"), change), name)
		}
		for _, host := range []string{"a\n192.0.2.1 bank:192.0.2.2", "a b:192.0.2.2", "a\x85b:192.0.2.2", "a#:192.0.2.2"} {
			config := defaultTaskConfig("true")
			config.ExtraHosts = []string{host}
			e.refused(e.quietTask(config), "extra_hosts")
		}
		must.Eq(t, nil, e.leftovers())
	})
}
