// SPDX-License-Identifier: MPL-2.0

package network

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocni "github.com/containerd/go-cni"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// plugin stands in for all CNI plugins: it notes what it is asked, and answers with two
// addresses, of loopback too; it fails where the test put a file.
const plugin = `#!/bin/sh
here=$(dirname "$0"); call=$(basename "$0").$CNI_COMMAND
cat > "$here/$call.asked"
echo "$call $CNI_CONTAINERID" >> "$here/calls"
if [ -e "$here/$call.fails" ]; then echo '{"cniVersion":"0.4.0","code":100,"msg":"'$call' is told to fail"}'; exit 1; fi
[ $CNI_COMMAND = ADD ] || exit 0
if [ $CNI_IFNAME = lo ]; then
	echo '{"cniVersion":"0.3.1","interfaces":[{"name":"lo","sandbox":"x"}],"ips":[{"version":"4","interface":0,"address":"127.0.0.1/8"}]}'
else
	echo '{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"version":"4","interface":0,"address":"10.9.8.7/24"},{"version":"4","interface":0,"address":"10.9.8.6/24"}]}'
fi
`

// machine has CNI plugins that the test asks for what they were asked.
type machine struct {
	*testing.T
	Maker
	bin string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	alone(t)
	dir, bin := filepath.Join(t.TempDir(), "network"), t.TempDir()
	for _, name := range []string{"loopback", "bridge", "firewall", "portmap"} {
		must.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(plugin), 0o700))
	}
	m := &machine{T: t, Maker: New(dir, []string{t.TempDir(), bin}, "10.9.8.0/24"), bin: bin}
	t.Cleanup(func() {
		for _, path := range m.namespaces() {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	return m
}

// namespaces are the paths of what lies below the maker's directory for the container.
func (m *machine) namespaces() []string {
	m.Helper()
	found, err := filepath.Glob(filepath.Join(m.dir, "netns", "box", "*"))
	must.NoError(m, err)
	return found
}

// fail has a call of a plugin fail from now on.
func (m *machine) fail(call string, fails bool) {
	m.Helper()
	path := filepath.Join(m.bin, call+".fails")
	if fails {
		must.NoError(m, os.WriteFile(path, nil, 0o600))
		return
	}
	must.NoError(m, os.Remove(path))
}

// calls are what the plugins were asked since the last time, in an order of their names.
func (m *machine) calls() []string {
	m.Helper()
	path := filepath.Join(m.bin, "calls")
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	must.NoError(m, err)
	must.NoError(m, os.Remove(path))
	calls := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(calls)
	return calls
}

// asked is the configuration that a plugin got last.
func (m *machine) asked(call string) map[string]any {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(m.bin, call+".asked"))
	must.NoError(m, err)
	var conf map[string]any
	must.NoError(m, json.Unmarshal(text, &conf))
	return conf
}

// nothingLeft fails where something of the container is left.
func (m *machine) nothingLeft() {
	m.Helper()
	ids, err := m.IDs(time.Now().Add(time.Hour))
	must.NoError(m, err)
	must.SliceEmpty(m, ids)
}

var (
	added   = []string{"bridge.ADD box", "firewall.ADD box", "loopback.ADD box", "portmap.ADD box"}
	removed = []string{"bridge.DEL box", "firewall.DEL box", "loopback.DEL box", "portmap.DEL box"}
)

// A container gets a namespace, an address and its ports, on the bridge of the subnet; all
// of it is undone.
func TestNetworkOfAContainer(t *testing.T) {
	m := newMachine(t)
	made, err := m.Create(t.Context(), "box", []gocni.PortMapping{{HostPort: 28080, ContainerPort: 8080, Protocol: "tcp"}})
	must.NoError(t, err)
	must.Eq(t, "10.9.8.7", made.IP)
	must.Eq(t, m.namespaces(), []string{made.Namespace})
	var is unix.Statfs_t
	must.NoError(t, unix.Statfs(made.Namespace, &is))
	must.Eq(t, unix.NSFS_MAGIC, is.Type)
	must.Eq(t, added, m.calls())

	conf := m.asked("bridge.ADD")
	must.Eq(t, any("nomad-gpu0"), conf["bridge"])
	must.Eq(t, any(false), conf["forceAddress"])
	ipam := conf["ipam"].(map[string]any)
	must.Eq(t, any(filepath.Join(m.dir, "addresses")), ipam["dataDir"])
	must.Eq(t, any([]any{[]any{map[string]any{"subnet": "10.9.8.0/24"}}}), ipam["ranges"])
	ports := m.asked("portmap.ADD")["runtimeConfig"].(map[string]any)["portMappings"].([]any)
	must.Len(t, 1, ports)
	must.Eq(t, any(28080.0), ports[0].(map[string]any)["HostPort"])

	ids, err := m.IDs(time.Now().Add(time.Hour))
	must.NoError(t, err)
	must.Eq(t, []string{"box"}, ids)
	must.NoError(t, m.Remove(t.Context(), "box"))
	must.Eq(t, removed, m.calls())
	// Without any port, portmap leaves all rules of the container.
	ports, _ = m.asked("portmap.DEL")["runtimeConfig"].(map[string]any)["portMappings"].([]any)
	must.Len(t, 1, ports)
	m.nothingLeft()
	must.NoError(t, m.Remove(t.Context(), "box"))
	must.SliceEmpty(t, m.calls())
}

// A network that could not be made is undone, also where its start was canceled, and what
// cannot be undone is told and stays known.
func TestNetworksThatCannotBeMade(t *testing.T) {
	m := newMachine(t)
	m.fail("portmap.ADD", true)
	_, err := m.Create(t.Context(), "box", nil)
	must.ErrorContains(t, err, "connect network: ")
	must.ErrorContains(t, err, "portmap.ADD is told to fail")
	m.nothingLeft()
	must.Eq(t, append(slices.Clone(added), removed...), sorted(m.calls(), added))

	m.fail("bridge.DEL", true)
	_, err = m.Create(t.Context(), "box", nil)
	must.ErrorContains(t, err, "portmap.ADD is told to fail")
	must.ErrorContains(t, err, "disconnect network: ")
	must.Len(t, 1, m.namespaces())
	must.ErrorContains(t, m.Remove(t.Context(), "box"), "bridge.DEL is told to fail")
	must.Len(t, 1, m.namespaces())
	m.fail("bridge.DEL", false)
	must.NoError(t, m.Remove(t.Context(), "box"))
	m.nothingLeft()

	m.fail("portmap.ADD", false)
	m.calls()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Create(over, "box", nil)
	must.ErrorContains(t, err, context.Canceled.Error())
	must.Eq(t, removed, m.calls())
	m.nothingLeft()
}

// sorted puts the calls that are among first before all others.
func sorted(calls, first []string) []string {
	slices.SortStableFunc(calls, func(a, b string) int {
		switch inA, inB := slices.Contains(first, a), slices.Contains(first, b); {
		case inA && !inB:
			return -1
		case inB && !inA:
			return 1
		}
		return 0
	})
	return calls
}

// What is in the way of a network is told before anything is made.
func TestNetworksThatCannotBeBegun(t *testing.T) {
	m := newMachine(t)
	create := func(maker Maker) error { _, err := maker.Create(t.Context(), "box", nil); return err }
	must.ErrorContains(t, create(New(m.dir, m.plugins, "10.9.8.0")), "bridge_subnet: ")
	none := New(m.dir, []string{"/nowhere", "/none"}, m.subnet)
	must.False(t, none.Found())
	must.True(t, m.Found())
	must.ErrorContains(t, create(none), `cni_path "/nowhere:/none" has none`)
	addBridge(t, "nomad-gpu0", "10.9.8.129/25")
	addMember(t, "nomad-gpu0")
	err := create(m.Maker)
	must.ErrorContains(t, err, "bridge_subnet 10.9.8.0/24 overlaps 10.9.8.128/25")
	must.True(t, structs.IsRecoverable(err))
	must.SliceEmpty(t, m.calls())
	m.nothingLeft()
	must.ErrorContains(t, create(New(m.dir, m.plugins, "10.7.0.0/16\x00")), "bridge_subnet: ")

	must.NoError(t, os.MkdirAll(filepath.Join(m.dir, "netns"), 0o700))
	file := filepath.Join(m.dir, "netns", "box")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	other := New(m.dir, m.plugins, "10.7.0.0/16")
	must.ErrorContains(t, create(other), "make network: ")
	must.ErrorContains(t, m.Remove(t.Context(), "box"), "remove network: ")
	must.NoError(t, os.Remove(file))
	must.NoError(t, create(other))
	must.Eq(t, any("nomad-gpu1"), m.asked("bridge.ADD")["bridge"])
	must.NoError(t, other.Remove(t.Context(), "box"))
}

// After a reboot the directory of a namespace is there and the namespace is not: nothing
// is to be disconnected.
func TestNetworksOfBeforeAReboot(t *testing.T) {
	m := newMachine(t)
	must.NoError(t, os.MkdirAll(filepath.Join(m.dir, "netns", "box"), 0o700))
	for _, name := range []string{"cni-1", "cni-2"} {
		must.NoError(t, os.WriteFile(filepath.Join(m.dir, "netns", "box", name), nil, 0o600))
	}
	must.NoError(t, m.Remove(t.Context(), "box"))
	must.SliceEmpty(t, m.calls())
	m.nothingLeft()

	made, err := m.Create(t.Context(), "box", nil)
	must.NoError(t, err)
	none := New(m.dir, nil, m.subnet)
	must.ErrorContains(t, none.Remove(t.Context(), "box"), "needs the CNI plugins")
	must.Eq(t, []string{made.Namespace}, m.namespaces())
	m.calls()
	must.NoError(t, m.Remove(t.Context(), "box"))
	must.Eq(t, removed, m.calls())
}

// What a disk refuses is told, and stays known.
func TestNetworksOnADiskThatRefuses(t *testing.T) {
	m := newMachine(t)
	dir := filepath.Join(m.dir, "netns", "box")
	must.NoError(t, os.MkdirAll(dir, 0o700))
	must.NoError(t, unix.Mount("disk", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, 0)) })
	must.ErrorContains(t, m.Remove(t.Context(), "box"), "remove network: ")
	left := filepath.Join(dir, "cni-1")
	must.NoError(t, os.WriteFile(left, nil, 0o600))
	must.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err := m.Create(t.Context(), "box", nil)
	must.ErrorContains(t, err, "make network: ")
	must.ErrorContains(t, m.Remove(t.Context(), "box"), left)
	must.SliceEmpty(t, m.calls())
}

// The bridges of the machine are those of the driver's names, each with its subnet, and
// whether something is on it.
func TestBridgesOfTheMachine(t *testing.T) {
	alone(t)
	none, err := Bridges()
	must.NoError(t, err)
	must.SliceEmpty(t, none)
	addBridge(t, "nomad-gpu0", "fd00:1::1/64")
	addBridge(t, "nomad-gpu3", "fd00:2::1/64", "10.5.6.1/24")
	addBridge(t, "nomad-gpu15", "10.5.7.1/25", "10.5.8.1/24")
	addBridge(t, "nomad-gpu16", "10.5.9.1/24")
	addBridge(t, "other", "10.5.10.1/24")
	addMember(t, "nomad-gpu3")
	ip(t, "link", "add", "name", "nomad-gpu4", "type", "veth", "peer", "name", "peer")
	t.Cleanup(func() { ip(t, "link", "del", "nomad-gpu4") })
	have, err := Bridges()
	must.NoError(t, err)
	must.Eq(t, []string{"nomad-gpu0 invalid Prefix true", "nomad-gpu3 10.5.6.0/24 false", "nomad-gpu15 10.5.7.0/25 true"}, described(have))

	_, err = subnetOf("none")
	must.ErrorContains(t, err, "look for bridges: ")
	b, err := chooseBridge("10.5.6.9/24")
	must.NoError(t, err)
	must.Eq(t, Bridge{Name: "nomad-gpu3", Subnet: netip.MustParsePrefix("10.5.6.0/24")}, b)
	b, err = chooseBridge("10.4.0.0/16")
	must.NoError(t, err)
	must.Eq(t, Bridge{Name: "nomad-gpu0", Unused: true}, b)
}

func described(bridges []Bridge) []string {
	var all []string
	for _, b := range bridges {
		used := " false"
		if b.Unused {
			used = " true"
		}
		all = append(all, b.Name+" "+b.Subnet.String()+used)
	}
	return all
}
