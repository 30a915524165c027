// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/netns"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/testport"
)

func TestConformance_NetworkMode_Host(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("readlink", "/proc/self/ns/net")
		own, _ := e.run(config)
		config.HostNetwork = true
		out, _ := e.run(config)
		host, err := os.Readlink("/proc/self/ns/net")
		must.NoError(t, err)
		must.Eq(t, host+"\n", out)
		must.NotEq(t, own, out)
	})
}

func TestNetworkOfTheGroup(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		ns, err := netns.NewNetNS(e.dir)
		must.NoError(t, err)
		defer func() { must.NoError(t, ns.Remove()) }()
		group := func(cfg *drivers.TaskConfig) {
			cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{
				Mode: drivers.NetIsolationModeGroup, Path: ns.GetPath(),
				HostsConfig: &drivers.HostsConfig{Hostname: "the-alloc", Address: "172.26.64.9"},
			}
		}
		out, _ := e.run(defaultTaskConfig("sh", "-c", "hostname; cat /etc/hosts; cat /proc/net/dev"), group)
		must.StrContains(t, out, "the-alloc\n")
		must.StrContains(t, out, "172.26.64.9 the-alloc")

		for mode, says := range map[string]string{"bridge": "contradicts the group's network", "host": "contradicts the group's network"} {
			config := defaultTaskConfig("true")
			config.NetworkMode = mode
			_, _, err := e.harness.StartTask(e.quietTask(config, group))
			must.ErrorContains(t, err, says)
		}
		config := defaultTaskConfig("true")
		config.NetworkMode = "group"
		_, _, err = e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "needs a network block")
	})
}

func TestConformance_Ports(t *testing.T) {
	if !fileExists("/usr/lib/cni/bridge") && !fileExists("/opt/cni/bin/bridge") {
		t.Skip("there are no CNI plugins")
	}
	withContainerdAlone(t, func(t *testing.T, e *env) {
		// Of no other test, also of another package: whoever connects to a port that is mapped
		// reaches the container.
		_, port, err := net.SplitHostPort(testport.Reserve(t))
		must.NoError(t, err)
		number, err := strconv.Atoi(port)
		must.NoError(t, err)
		config := defaultTaskConfig("/local/listen", "8080")
		config.NetworkMode, config.Ports = "bridge", []string{"web"}
		cfg := e.task(config, func(cfg *drivers.TaskConfig) {
			cfg.Resources.Ports = &structs.AllocatedPorts{{Label: "web", Value: number, To: 8080}}
		})
		e.bring(cfg, "listen")
		_, network, err := e.harness.StartTask(cfg)
		must.NoError(t, err)
		defer func() { _ = e.driver.DestroyTask(cfg.ID, true) }()
		must.Eq(t, 8080, network.PortMap["web"])
		e.waitForLog(cfg, "listening")
		must.Eq(t, "hello from the task\n", greeting(t, net.JoinHostPort(network.IP, "8080")))
		host, err := hostAddress()
		must.NoError(t, err)
		must.Eq(t, "hello from the task\n", greeting(t, net.JoinHostPort(host, port)))

		// A start that is repeated tells the same network.
		e.restart()
		_, again, err := e.harness.StartTask(cfg)
		must.NoError(t, err)
		must.Eq(t, network, again)

		e.end(cfg)
		// The port is the machine's again.
		rules, err := exec.Command("iptables", "-t", "nat", "-S").CombinedOutput()
		must.NoError(t, err, must.Sprint(string(rules)))
		must.StrNotContains(t, string(rules), "port "+port)
		must.StrNotContains(t, string(rules), "ports "+port)
		ids, err := networks(e.driver.settings).IDs(time.Now().Add(time.Hour))
		must.NoError(t, err)
		must.Eq(t, nil, ids)
		config.Ports = []string{"none"}
		_, _, err = e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, `ports: "none"`)
		must.Eq(t, nil, e.leftovers())
	})
}

// bring puts a program of testdata into the task's local directory.
func (e *env) bring(cfg *drivers.TaskConfig, name string) {
	e.t.Helper()
	must.NoError(e.t, exec.Command("cp", goProgram(e.t, "driver/testdata/"+name), cfg.TaskDir().LocalDir).Run())
}

func greeting(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	must.NoError(t, err)
	defer conn.Close()
	text, err := io.ReadAll(conn)
	must.NoError(t, err)
	return string(text)
}

// hostAddress is an address of this machine that is not loopback.
func hostAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String(), nil
		}
	}
	return "", os.ErrNotExist
}

func TestConformance_DNS(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		for _, dns := range []*drivers.DNSConfig{nil, {Servers: []string{"8.8.8.8"}, Searches: []string{"example.test"}, Options: []string{"ndots:1"}}} {
			cfg := e.task(defaultTaskConfig("sleep", "1000"), func(cfg *drivers.TaskConfig) { cfg.DNS = dns })
			e.start(cfg)
			dtestutil.TestTaskDNSConfig(t, e.harness, cfg.ID, dns)
		}
	})
}

// As with Docker and Kubernetes: in a network of its own.
func TestEveryUserMayListenAndPing(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		ns, err := netns.NewNetNS(e.dir)
		must.NoError(t, err)
		defer func() { must.NoError(t, ns.Remove()) }()
		group := func(cfg *drivers.TaskConfig) {
			cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: ns.GetPath()}
		}
		run := func(user string, change ...func(*drivers.TaskConfig)) *drivers.ExitResult {
			config := defaultTaskConfig("/local/unprivileged")
			config.CapDrop = []string{"all"}
			cfg := e.quietTask(config, append(change, func(cfg *drivers.TaskConfig) { cfg.User = user })...)
			cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
			e.bring(cfg, "unprivileged")
			e.start(cfg)
			return e.wait(cfg.ID)
		}
		must.Eq(t, 0, run("1000").ExitCode)
		must.Eq(t, 0, run("1000", group).ExitCode)
		must.Eq(t, 0, run("0").ExitCode)

		settings := []string{"-c", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range"}
		config := defaultTaskConfig("sh", settings...)
		config.Sysctl = []map[string]string{{"net.ipv4.ip_unprivileged_port_start": "512"}}
		out, _ := e.run(config)
		must.Eq(t, []string{"512", "0\t2147483647"}, lines(out), must.Sprint("the author's word counts"))
		config = defaultTaskConfig("sh", settings...)
		config.HostNetwork = true
		out, _ = e.run(config)
		before, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
		must.NoError(t, err)
		must.Eq(t, string(before), lines(out)[0]+"\n")
		must.NotEq(t, "0\n", string(before), must.Sprint("the host's own setting was changed"))
	})
}
