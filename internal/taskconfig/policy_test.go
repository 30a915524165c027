// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"strings"
	"testing"
)

func TestCeilingsOfTheOperator(t *testing.T) {
	node := Policy{PidsLimit: 10, DefaultSnapshotter: "overlayfs", AllowSnapshotters: []string{"native"}, AllowCDIDevices: []string{"a/b=*"}}
	for _, test := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.PidsLimit = 10 }, ""},
		{func(c *Config) { c.PidsLimit = 11 }, "pids_limit: 11 is above the 10"},
		{func(c *Config) { c.PidsLimit = -1 }, "pids_limit: -1 is above the 10"},
		{func(c *Config) { c.Snapshotter = "overlayfs" }, ""},
		{func(c *Config) { c.Snapshotter = "native" }, ""},
		{func(c *Config) { c.Snapshotter = "zfs" }, `snapshotter: "zfs" is not allowed`},
		{func(c *Config) { c.CDIDevices = []string{"x/y=1", "a/b=1"} }, `cdi_devices: "x/y=1"`},
	} {
		config := defaults()
		config.ImagePullTimeout = "5m"
		test.change(&config)
		err := config.Check(node)
		if (err == nil) != (test.says == "") || err != nil && !strings.HasPrefix(err.Error(), test.says) {
			t.Errorf("got %v, want %q", err, test.says)
		}
	}
}

func TestNetworkModes(t *testing.T) {
	for _, test := range []struct {
		config                      Config
		host, bridge, group, leaves bool
	}{
		{Config{}, false, false, false, false},
		{Config{HostNetwork: true}, true, false, false, true},
		{Config{NetworkMode: "host"}, true, false, false, true},
		{Config{NetworkMode: "bridge"}, false, true, false, true},
		{Config{NetworkMode: "group"}, false, false, true, false},
		{Config{NetworkMode: "none"}, false, false, false, true},
	} {
		c := test.config
		if c.UsesHostNetwork() != test.host || c.UsesBridge() != test.bridge || c.UsesGroupNetwork() != test.group || c.LeavesGroupNetwork() != test.leaves {
			t.Errorf("%+v", test)
		}
	}
	if !(Config{IPCMode: "shareable"}).OffersIPC() || (Config{IPCMode: "host"}).OffersIPC() {
		t.Error("OffersIPC")
	}
	if (Config{}).ShmBytes() != 64<<20 || (Config{ShmSize: "1M"}).ShmBytes() != 1<<20 {
		t.Error("ShmBytes")
	}
	if got := (Config{Volumes: []string{"bad", "a:/a"}}).VolumeMounts(); len(got) != 1 || got[0].Target != "/a" {
		t.Errorf("got %v", got)
	}
}

func FuzzParseDevice(f *testing.F) {
	for _, seed := range []string{"/dev/fuse", "/dev/a:/dev/b:rw", "/dev/../x", "::", "/dev/a:/dev/b:rw:m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDevice(text)
		if err != nil {
			return
		}
		for _, p := range []string{d.HostPath, d.ContainerPath} {
			if !strings.HasPrefix(p, "/dev/") || strings.Contains(p, "/../") || strings.HasSuffix(p, "/..") {
				t.Fatalf("%q gave path %q", text, p)
			}
		}
	})
}

func FuzzMount(f *testing.F) {
	f.Add("bind", "/x", "local/y", "ro")
	f.Add("tmpfs", "/x/../..", "", "size=1")
	f.Fuzz(func(t *testing.T, kind, target, source, option string) {
		m, err := MountConfig{Type: kind, Target: target, Source: source, Options: []string{option}}.Mount()
		if err != nil {
			return
		}
		if m.Type != "bind" && m.Type != "tmpfs" || m.Target == "/" || strings.Contains(m.Target, "/../") {
			t.Fatalf("%q %q %q %q gave %+v", kind, target, source, option, m)
		}
	})
}

// defaults is a config as the schema's defaults leave it.
func defaults() Config {
	return Config{Image: "redis:7", NoNewPrivileges: true, Seccomp: true, HostDNS: true, Swappiness: -1}
}
