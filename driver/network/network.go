// SPDX-License-Identifier: MPL-2.0

// Package network gives tasks a network of their own, on a bridge of the driver's.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/netns"
	gocni "github.com/containerd/go-cni"

	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
)

// Maker makes networks for tasks that want one of their own, with the CNI
// plugins of the machine. A container's network is recorded in a directory named
// after the container, so that it is found and undone whatever happens.
type Maker struct {
	dir     string
	plugins []string
	subnet  string
}

// New returns the maker of networks with a subnet. They are kept below dir; plugins are the
// directories of the CNI plugins.
func New(dir string, plugins []string, subnet string) Maker {
	return Maker{dir: dir, plugins: plugins, subnet: subnet}
}

// Network is what a task's own network turned out to be.
type Network struct {
	Namespace string
	IP        string
}

// Create makes a network namespace and connects it to the driver's bridge.
func (m Maker) Create(ctx context.Context, id string, ports []gocni.PortMapping) (Network, error) {
	on, err := chooseBridge(m.subnet)
	if err != nil {
		return Network{}, err
	}
	cni, err := m.cni(on)
	if err != nil {
		return Network{}, err
	}
	dir := filepath.Join(m.dir, "netns", id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return Network{}, fmt.Errorf("make network: %w", err)
	}
	ns, err := netns.NewNetNS(dir)
	if err != nil {
		return Network{}, fmt.Errorf("make network: %w", err)
	}
	result, err := cni.Setup(ctx, id, ns.GetPath(), gocni.WithCapabilityPortMap(ports))
	if err != nil {
		return Network{}, errors.Join(fmt.Errorf("connect network: %w", err), m.Remove(context.WithoutCancel(ctx), id))
	}
	made := Network{Namespace: ns.GetPath()}
	for _, config := range result.Interfaces {
		for _, ip := range config.IPConfigs {
			if made.IP == "" && !ip.IP.IsLoopback() {
				made.IP = ip.IP.String()
			}
		}
	}
	return made, nil
}

// anyPort has the portmap plugin remove a container's rules. It finds them by the
// container's ID, but removes none if it is told of no port.
var anyPort = []gocni.PortMapping{{HostPort: 1, ContainerPort: 1, Protocol: "tcp"}}

// Remove undoes Create, as far as that came. Where there is nothing to undo, it succeeds.
func (m Maker) Remove(ctx context.Context, id string) error {
	dir := filepath.Join(m.dir, "netns", id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove network: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		cni, err := m.cni(Bridge{}) // which does not matter for a removal
		if err != nil {
			return err
		}
		// A namespace that was never connected, or is gone, has nothing to undo.
		closed, err := netns.LoadNetNS(path).Closed()
		if err == nil && !closed {
			if err := cni.Remove(ctx, id, path, gocni.WithCapabilityPortMap(anyPort)); err != nil {
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

// IDs names the containers whose network is older than before.
func (m Maker) IDs(before time.Time) ([]string, error) {
	return hostdir.NamesOlderThan(filepath.Join(m.dir, "netns"), before)
}

// Found reports whether the CNI plugins are there.
func (m Maker) Found() bool {
	return slices.ContainsFunc(m.plugins, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "bridge"))
		return err == nil
	})
}

func (m Maker) cni(on Bridge) (gocni.CNI, error) {
	if !m.Found() {
		return nil, fmt.Errorf("network_mode \"bridge\" needs the CNI plugins, and cni_path %q has none; install them, or give the group a network", strings.Join(m.plugins, ":"))
	}
	conf, err := json.Marshal(m.conf(on))
	if err != nil {
		return nil, fmt.Errorf("encode CNI configuration: %w", err)
	}
	cni, err := gocni.New(gocni.WithMinNetworkCount(2), gocni.WithPluginDir(m.plugins), gocni.WithLoNetwork, gocni.WithConfListBytes(conf))
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	return cni, nil
}

// conf is the bridge's CNI configuration. Addresses are counted in the state
// directory, which a reboot empties together with the network namespaces.
func (m Maker) conf(on Bridge) map[string]any {
	return map[string]any{
		"cniVersion": "0.4.0", "name": "nomad-gpu",
		"plugins": []map[string]any{
			{
				"type": "bridge", "bridge": on.Name, "forceAddress": on.Unused, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": filepath.Join(m.dir, "addresses"),
					"ranges": [][]map[string]string{{{"subnet": m.subnet}}},
					"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "firewall"},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "snat": true},
		},
	}
}
