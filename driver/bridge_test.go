package driver

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestBridgeOfASubnet(t *testing.T) {
	at := func(name, subnet string, unused bool) bridge {
		b := bridge{name: name, unused: unused}
		if subnet != "" {
			b.subnet = netip.MustParsePrefix(subnet)
		}
		return b
	}
	const want = "10.1.0.0/24"
	for _, test := range []struct {
		name  string
		have  []bridge
		gets  string
		force bool
	}{
		{"the first", nil, "nomad-gpu0", false},
		{"the same subnet, in use", []bridge{at("nomad-gpu0", want, false)}, "nomad-gpu0", false},
		{"the same subnet, not the first", []bridge{at("nomad-gpu0", "10.2.0.0/24", true), at("nomad-gpu1", want, true)}, "nomad-gpu1", false},
		{"another, unused", []bridge{at("nomad-gpu0", "10.2.0.0/24", true)}, "nomad-gpu0", true},
		{"another, in use", []bridge{at("nomad-gpu0", "10.2.0.0/24", false)}, "nomad-gpu1", false},
		{"a gap", []bridge{at("nomad-gpu1", "10.2.0.0/24", false)}, "nomad-gpu0", false},
		{"of two unused the one in the way", []bridge{at("nomad-gpu0", "10.2.0.0/24", true), at("nomad-gpu1", "10.1.0.0/16", true)}, "nomad-gpu1", true},
		{"one without an address", []bridge{at("nomad-gpu0", "", true)}, "nomad-gpu0", true},
	} {
		got, err := bridgeFor(netip.MustParsePrefix(want), test.have)
		must.NoError(t, err, must.Sprint(test.name))
		must.Eq(t, test.gets, got.name, must.Sprint(test.name))
		must.Eq(t, test.force, got.unused, must.Sprint(test.name))
	}
	_, err := bridgeFor(netip.MustParsePrefix(want), []bridge{at("nomad-gpu0", "10.2.0.0/24", true), at("nomad-gpu1", "10.1.0.128/25", false)})
	must.ErrorContains(t, err, "overlaps 10.1.0.128/25")
	must.True(t, structs.IsRecoverable(err))
	var all []bridge
	for i := range maxBridges {
		all = append(all, at("nomad-gpu"+itoa(i), "10.3."+itoa(i)+".0/24", false))
	}
	_, err = bridgeFor(netip.MustParsePrefix(want), all)
	must.ErrorContains(t, err, "changed 16 times")
}

// Tasks outlive a change of bridge_subnet, and new ones get the new one.
func TestChangedBridgeSubnet(t *testing.T) {
	if !fileExists("/usr/lib/cni/bridge") && !fileExists("/opt/cni/bin/bridge") {
		t.Skip("there are no CNI plugins")
	}
	forEachContainerdAlone(t, func(t *testing.T, e *env) {
		t.Cleanup(func() { removeUnusedBridges(t, "172.26.250.0/24", "172.26.250.128/25", "172.26.251.0/24") })
		config := defaultTaskConfig("/local/listen", "8080")
		config.NetworkMode = "bridge"
		listen := func(e *env) (*drivers.TaskConfig, string, error) {
			cfg := e.quietTask(config)
			cfg.StdoutPath, cfg.StderrPath = "/dev/null", "/dev/null"
			e.bring(cfg, "listen")
			_, network, err := e.harness.StartTask(cfg)
			if err != nil {
				return nil, "", err
			}
			t.Cleanup(func() { _ = e.driver.DestroyTask(cfg.ID, true) })
			return cfg, network.IP, nil
		}
		answers := func(ip, subnet string) {
			t.Helper()
			must.True(t, netip.MustParsePrefix(subnet).Contains(netip.MustParseAddr(ip)), must.Sprint(ip))
			eventually(t, "the task at "+ip+" answers", func() bool {
				conn, err := net.Dial("tcp", net.JoinHostPort(ip, "8080"))
				if err == nil {
					_ = conn.Close()
				}
				return err == nil
			})
		}
		e = e.with(func(c *Config) { c.BridgeSubnet = "172.26.250.0/24" })
		old, oldIP, err := listen(e)
		must.NoError(t, err)
		answers(oldIP, "172.26.250.0/24")

		changed := e.with(func(c *Config) { c.BridgeSubnet = "172.26.251.0/24" })
		_, newIP, err := listen(changed)
		must.NoError(t, err)
		answers(newIP, "172.26.251.0/24")
		answers(oldIP, "172.26.250.0/24")

		overlapping := e.with(func(c *Config) { c.BridgeSubnet = "172.26.250.128/25" })
		_, _, err = listen(overlapping)
		must.ErrorContains(t, err, "overlaps 172.26.250.0/24, where tasks still run")
		must.NoError(t, e.driver.DestroyTask(old.ID, true))
		_, ip, err := listen(overlapping)
		must.NoError(t, err)
		answers(ip, "172.26.250.128/25")
	})
}

// removeUnusedBridges leaves the machine as it was for others.
func removeUnusedBridges(t *testing.T, subnets ...string) {
	t.Helper()
	have, err := hostBridges()
	must.NoError(t, err)
	for _, b := range have {
		for _, subnet := range subnets {
			if b.unused && b.subnet == netip.MustParsePrefix(subnet) {
				must.NoError(t, exec.Command("ip", "link", "del", b.name).Run())
			}
		}
	}
}
