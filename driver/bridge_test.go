// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/network"
)

// Tasks outlive a change of bridge_subnet, and new ones get the new one.
func TestChangedBridgeSubnet(t *testing.T) {
	if !fileExists("/usr/lib/cni/bridge") && !fileExists("/opt/cni/bin/bridge") {
		t.Skip("there are no CNI plugins")
	}
	withContainerdAlone(t, func(t *testing.T, e *env) {
		t.Cleanup(func() { removeUnusedBridges(t, "172.26.250.0/24", "172.26.250.128/25", "172.26.251.0/24") })
		block := defaultTaskConfig("/local/listen", "8080")
		block.NetworkMode = "bridge"
		listen := func(e *env) (*drivers.TaskConfig, string, error) {
			cfg := e.quietTask(block)
			cfg.StdoutPath, cfg.StderrPath = "/dev/null", "/dev/null"
			e.bring(cfg, "listen")
			_, made, err := e.harness.StartTask(cfg)
			if err != nil {
				return nil, "", err
			}
			t.Cleanup(func() { _ = e.driver.DestroyTask(cfg.ID, true) })
			return cfg, made.IP, nil
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
		e = e.with(func(c *config.Config) { c.BridgeSubnet = "172.26.250.0/24" })
		old, oldIP, err := listen(e)
		must.NoError(t, err)
		answers(oldIP, "172.26.250.0/24")

		changed := e.with(func(c *config.Config) { c.BridgeSubnet = "172.26.251.0/24" })
		_, newIP, err := listen(changed)
		must.NoError(t, err)
		answers(newIP, "172.26.251.0/24")
		answers(oldIP, "172.26.250.0/24")

		overlapping := e.with(func(c *config.Config) { c.BridgeSubnet = "172.26.250.128/25" })
		_, _, err = listen(overlapping)
		must.ErrorContains(t, err, "overlaps 172.26.250.0/24, where tasks still run")
		e.end(old)
		_, ip, err := listen(overlapping)
		must.NoError(t, err)
		answers(ip, "172.26.250.128/25")
	})
}

// removeUnusedBridges leaves the machine as it was for others.
func removeUnusedBridges(t *testing.T, subnets ...string) {
	t.Helper()
	have, err := network.Bridges()
	must.NoError(t, err)
	for _, b := range have {
		for _, subnet := range subnets {
			if b.Unused && b.Subnet == netip.MustParsePrefix(subnet) {
				must.NoError(t, exec.Command("ip", "link", "del", b.Name).Run())
			}
		}
	}
}
