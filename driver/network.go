package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/netns"
	gocni "github.com/containerd/go-cni"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// bridges makes networks for tasks that want one of their own, with the CNI
// plugins of the machine. What it made for a container lies in a directory named
// after the container, so that it is found and undone whatever happens.
type bridges struct {
	dir     string
	plugins []string
	subnet  string
}

func newBridges(s settings) bridges {
	return bridges{
		dir: filepath.Join(s.StateDir, "network"), plugins: strings.Split(s.CNIPath, ":"), subnet: s.BridgeSubnet,
	}
}

// network is what a task's own network turned out to be.
type network struct {
	Namespace string
	IP        string
}

// create makes a network namespace and connects it to the driver's bridge.
func (b bridges) create(ctx context.Context, id string, ports []gocni.PortMapping) (network, error) {
	bridge, err := chooseBridge(b.subnet)
	if err != nil {
		return network{}, err
	}
	cni, err := b.cni(bridge)
	if err != nil {
		return network{}, err
	}
	dir := filepath.Join(b.dir, "netns", id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return network{}, fmt.Errorf("make network: %w", err)
	}
	ns, err := netns.NewNetNS(dir)
	if err != nil {
		return network{}, fmt.Errorf("make network: %w", err)
	}
	result, err := cni.Setup(ctx, id, ns.GetPath(), gocni.WithCapabilityPortMap(ports))
	if err != nil {
		return network{}, errors.Join(fmt.Errorf("connect network: %w", err), b.remove(context.WithoutCancel(ctx), id))
	}
	n := network{Namespace: ns.GetPath()}
	for _, config := range result.Interfaces {
		for _, ip := range config.IPConfigs {
			if n.IP == "" && !ip.IP.IsLoopback() {
				n.IP = ip.IP.String()
			}
		}
	}
	return n, nil
}

// remove undoes create, as far as that came. Nothing to undo is no error.
func (b bridges) remove(ctx context.Context, id string) error {
	dir := filepath.Join(b.dir, "netns", id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove network: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		cni, err := b.cni(bridge{}) // which does not matter to what is removed
		if err != nil {
			return err
		}
		// A namespace that was never connected, or is gone, has nothing to undo.
		closed, err := netns.LoadNetNS(path).Closed()
		if err == nil && !closed {
			if err := cni.Remove(ctx, id, path); err != nil {
				return fmt.Errorf("disconnect network: %w", err)
			}
		}
		if err := netns.LoadNetNS(path).Remove(); err != nil {
			return fmt.Errorf("remove network: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove network: %w", err)
	}
	return nil
}

func (b bridges) ids(before time.Time) ([]string, error) {
	return namesOlderThan(filepath.Join(b.dir, "netns"), before)
}

// found reports whether the CNI plugins are there.
func (b bridges) found() bool {
	return slices.ContainsFunc(b.plugins, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "bridge"))
		return err == nil
	})
}

func (b bridges) cni(on bridge) (gocni.CNI, error) {
	if !b.found() {
		return nil, fmt.Errorf("network_mode \"bridge\" needs the CNI plugins, and cni_path %q has none; install them, or give the group a network", strings.Join(b.plugins, ":"))
	}
	conf, err := json.Marshal(b.conf(on))
	if err != nil {
		return nil, fmt.Errorf("encode CNI configuration: %w", err)
	}
	cni, err := gocni.New(gocni.WithMinNetworkCount(2), gocni.WithPluginDir(b.plugins), gocni.WithLoNetwork, gocni.WithConfListBytes(conf))
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	return cni, nil
}

// conf is the bridge's CNI configuration. Addresses are counted in the state
// directory, which a reboot empties together with the network namespaces.
func (b bridges) conf(on bridge) map[string]any {
	return map[string]any{
		"cniVersion": "0.4.0", "name": "nomad-gpu",
		"plugins": []map[string]any{
			{
				"type": "bridge", "bridge": on.name, "forceAddress": on.unused, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": filepath.Join(b.dir, "addresses"),
					"ranges": [][]map[string]string{{{"subnet": b.subnet}}},
					"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "firewall"},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "snat": true},
		},
	}
}

// networkSysctls are the defaults for networks, without those that this kernel
// does not have: a container with such a one would not start.
func networkSysctls() map[string]string {
	have := maps.Clone(spec.NetworkSysctls)
	maps.DeleteFunc(have, func(key, _ string) bool {
		_, err := os.Stat("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		return err != nil
	})
	return have
}

// checkNetwork holds the mode against the network that the group has.
func checkNetwork(cfg *drivers.TaskConfig, config spec.Config, m *spec.Mistakes) {
	group := cfg.NetworkIsolation != nil && cfg.NetworkIsolation.Path != ""
	key := "network_mode"
	if config.HostNetwork {
		key = "host_network"
	}
	switch {
	case group && config.LeavesGroupNetwork():
		m.Add(key, "contradicts the group's network, which all its tasks share; remove one of them")
	case !group && config.UsesGroupNetwork():
		m.Add(key, "\"group\" needs a network block in the group, such as network { mode = \"bridge\" }")
	}
	if len(config.Ports) > 0 && !config.UsesBridge() {
		m.Add("ports", "are mapped by the driver with network_mode \"bridge\" only; Nomad maps those of a group's own network")
	}
}

// portMappings translates the labels in ports into what CNI maps, and into what
// Nomad tells others.
func portMappings(cfg *drivers.TaskConfig, labels []string) ([]gocni.PortMapping, map[string]int, error) {
	var mappings []gocni.PortMapping
	names := map[string]int{}
	for _, label := range labels {
		if cfg.Resources == nil || cfg.Resources.Ports == nil {
			return nil, nil, fmt.Errorf("ports: %q is not a port of the group's network block", label)
		}
		port, ok := cfg.Resources.Ports.Get(label)
		if !ok {
			return nil, nil, fmt.Errorf("ports: %q is not a port of the group's network block", label)
		}
		to := port.To
		if to == 0 {
			to = port.Value
		}
		names[label] = to
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, gocni.PortMapping{HostPort: int32(port.Value), ContainerPort: int32(to), Protocol: protocol, HostIP: port.HostIP})
		}
	}
	return mappings, names, nil
}
