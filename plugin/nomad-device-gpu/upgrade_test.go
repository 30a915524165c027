// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	nomaddevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

// process is the plugin in a process of its own, as Nomad runs it.
func process(t *testing.T) (*goplugin.Client, nomaddevice.DevicePlugin) {
	t.Helper()
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake, AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, Cmd: exec.Command("/proc/self/exe"), Logger: hclog.NewNullLogger(),
		Plugins:      map[string]goplugin.Plugin{base.PluginTypeBase: &base.PluginBase{}, base.PluginTypeDevice: &nomaddevice.PluginDevice{}},
		StartTimeout: time.Minute,
	})
	t.Cleanup(client.Kill)
	connection, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := connection.Dispense(base.PluginTypeDevice)
	if err != nil {
		t.Fatal(err)
	}
	return client, raw.(nomaddevice.DevicePlugin)
}

// configure hands a configuration over as Nomad does.
func configure(t *testing.T, p nomaddevice.DevicePlugin, text string) {
	t.Helper()
	schema, err := p.ConfigSchema()
	if err != nil {
		t.Fatal(err)
	}
	config, err := agentconfig.Encode(schema, text)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SetConfig(&base.Config{PluginConfig: config}); err != nil {
		t.Fatal(err)
	}
}

// Only a new process sees a new driver: the old one ends by itself, and Nomad starts
// the next.
func TestProcessEndsWhenItsDriverIsUpgraded(t *testing.T) {
	dir := tmpfs.Dir(t)
	topology, err := filepath.Abs("../../e2e/topology/t4.hcl")
	if err != nil {
		t.Fatal(err)
	}
	config := `
		state_dir = "` + dir + `/run"
		data_dir  = "` + dir + `/data"
		health { interval = "100ms" }
		simulation {
			topology = "` + topology + `"
			dir      = "` + dir + `/sim"
		}`
	serving := func(p nomaddevice.DevicePlugin) {
		t.Helper()
		stream, err := p.Fingerprint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for f := range stream {
			if f.Error != nil {
				t.Fatal(f.Error)
			}
			if len(f.Devices) == 1 && f.Devices[0].Devices[0].Healthy {
				return
			}
		}
		t.Fatal("the plugin ended before it had a healthy GPU")
	}
	client, first := process(t)
	configure(t, first, config)
	serving(first)
	if client.Exited() {
		t.Fatal("it ended before the upgrade")
	}
	if err := sim.WriteControl(dir+"/sim", sim.Control{Driver: "580.95.05"}); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); !client.Exited(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it goes on with the library of the old driver")
		}
	}
	_, second := process(t)
	configure(t, second, config)
	serving(second)
}
