// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"testing"

	"github.com/shoenig/test/must"
)

const names = "hostname; cat /etc/hosts"

func TestHostsOfATaskAlone(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", names)
		out, _ := e.run(config)
		must.StrContains(t, out, "127.0.0.1 "+lines(out)[0]+"\n", must.Sprint("a task cannot resolve its own name"))
		config.ExtraHosts = []string{"host.docker.internal:host-gateway"}
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "the task has no network but loopback")
	})
}

func TestHostsOnTheHostsNetwork(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", names)
		config.NetworkMode, config.ExtraHosts = "host", []string{"host.docker.internal:host-gateway", "six:[fd00::1]"}
		out, _ := e.run(config)
		name, err := os.Hostname()
		must.NoError(t, err)
		must.Eq(t, name, lines(out)[0])
		must.StrContains(t, out, "127.0.0.1 host.docker.internal\n")
		must.StrContains(t, out, "fd00::1 six\n")
	})
}

func TestHostsOnTheBridge(t *testing.T) {
	if !fileExists("/usr/lib/cni/bridge") && !fileExists("/opt/cni/bin/bridge") {
		t.Skip("there are no CNI plugins")
	}
	withContainerdAlone(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", names)
		config.NetworkMode, config.Hostname, config.ExtraHosts = "bridge", "box", []string{"host.docker.internal:host-gateway"}
		cfg := e.task(config)
		_, network, err := e.harness.StartTask(cfg)
		must.NoError(t, err)
		e.wait(cfg.ID)
		out := e.logs(cfg, "stdout")
		must.StrContains(t, out, network.IP+" box\n")
		must.StrContains(t, out, "172.26.240.1 host.docker.internal\n")
	})
}

func TestDefaultRoute(t *testing.T) {
	const header = "Iface\tDestination\tGateway\tFlags\n"
	got, err := defaultRoute(header + "eth0\t0000A8C0\t00000000\t0001\neth0\t00000000\t0100A8C0\t0003\n")
	must.NoError(t, err)
	must.Eq(t, "192.168.0.1", got)
	_, err = defaultRoute(header)
	must.ErrorContains(t, err, "no default route")
}
