// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// StartClient starts the node's Nomad client, and waits until Nomad may place
// work on the node.
func (n *Node) StartClient(ctx context.Context) error {
	n.cluster.options.Progress("starting a Nomad client with both plugins on %s", n.Name)
	ports, err := FreePorts(2)
	if err != nil {
		return err
	}
	n.URL = n.cluster.options.url(ports[0])
	if n.API, err = api.NewClient(n.cluster.options.client(n.URL)); err != nil {
		return err
	}
	n.API.SetSecretID(n.cluster.secret)
	plugins, err := n.pluginDir()
	if err != nil {
		return err
	}
	networks := n.Dir("cni")
	if err := os.MkdirAll(networks, 0o755); err != nil {
		return fmt.Errorf("make the folder of CNI networks: %w", err)
	}
	for name, list := range n.options.Networks {
		if err := os.WriteFile(filepath.Join(networks, name+".conflist"), []byte(list), 0o644); err != nil {
			return fmt.Errorf("write CNI network: %w", err)
		}
	}
	config := fmt.Sprintf(clientConfig, n.Name, filepath.Join(n.dir, "nomad"), plugins,
		ports[0], ports[1], n.cluster.addresses(1), cgroupParent(n.dir), networks, filepath.Join(n.cluster.options.Bin, "e2e", "gpuprobe"), filepath.Join(n.cluster.options.Bin, "e2e"), n.deviceConfig(), n.driverConfig())
	if n.options.Docker {
		config += dockerClientConfig
	}
	for name := range n.options.Plugins {
		config += fmt.Sprintf("plugin %q {\n}\n", name)
	}
	ended, err := n.cluster.startAgent(n.machine, n.dir, config)
	if err != nil {
		return err
	}
	if err := n.waitRegistered(ctx, ended); err != nil {
		return err
	}
	return n.WaitNode(ctx, func(node *api.Node) bool { return takesWork(node) && n.Ready(node) })
}

// pluginDir is the folder with the plugins' programs: that of ours, or one with copies
// where there are others too.
func (n *Node) pluginDir() (string, error) {
	if len(n.options.Plugins) == 0 {
		return n.cluster.options.Bin, nil
	}
	dir := filepath.Join(n.dir, "plugins")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make plugin folder: %w", err)
	}
	programs := maps.Clone(n.options.Plugins)
	for _, name := range []string{devicePlugin, driverPlugin} {
		programs[name] = filepath.Join(n.cluster.options.Bin, name)
	}
	for name, path := range programs {
		program, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), program, 0o755)
		}
		if err != nil {
			return "", fmt.Errorf("copy plugin %s: %w", name, err)
		}
	}
	return dir, nil
}

func (c *Cluster) startAgent(m *machine, dir, config string) (<-chan struct{}, error) {
	path := filepath.Join(dir, "agent.hcl")
	if err := os.WriteFile(path, []byte(config+c.options.agent()), 0o600); err != nil {
		return nil, fmt.Errorf("start Nomad agent: %w", err)
	}
	// Agents take most of the tests' processor time, a quarter of it to collect garbage.
	return m.start(filepath.Join(dir, "nomad.log"), []string{"GOGC=400"}, filepath.Join(c.options.Bin, "e2e", "nomad"), "agent", "-config", path)
}

func (n *Node) deviceConfig() string {
	config := n.options.GPUs + fmt.Sprintf("\n    data_dir = %q\n", filepath.Join(n.dir, "gpu"))
	if n.options.Topology == "" {
		return config
	}
	tools, dcmi := filepath.Join(n.cluster.options.Bin, "e2e"), ""
	// Releases without Ascend devices do not know the key.
	if library := filepath.Join(tools, "libdcmi.so"); exists(library) {
		dcmi = fmt.Sprintf("dcmi = %q", library)
	}
	control := filepath.Join(tools, n.options.MPSBranch, "nvidia-cuda-mps-control")
	return config + fmt.Sprintf(simulationConfig, n.options.Topology, n.SimDir(), n.Name, dcmi, control, n.options.MPS)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (n *Node) driverConfig() string {
	config := n.options.Driver + fmt.Sprintf("\n    namespace = %q\n", taskCgroup(n.dir))
	// A release that has no such program has no such key.
	if program := filepath.Join(n.cluster.options.Bin, "nomad-gpu-self"); exists(program) {
		config += fmt.Sprintf("    self_path = %q\n", program)
	}
	return config
}

// waitRegistered returns when the client has told the server about itself.
func (n *Node) waitRegistered(ctx context.Context, ended <-chan struct{}) error {
	return retry(ctx, "wait for "+n.Name, ended, n.Log("nomad"), func() error {
		asked, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		var self api.AgentSelf
		if _, err := n.API.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(asked)); err != nil {
			return err
		}
		n.ID = self.Stats["client"]["node_id"]
		if ttl := self.Stats["client"]["heartbeat_ttl"]; n.ID == "" || ttl == "" || ttl == "0s" {
			return errors.New("it has not registered yet")
		}
		return nil
	})
}

// WaitNode blocks until what Nomad knows of the node is as wanted.
func (n *Node) WaitNode(ctx context.Context, wanted func(*api.Node) bool) error {
	q := &api.QueryOptions{WaitTime: time.Minute}
	for {
		node, meta, err := n.cluster.API.Nodes().Info(n.ID, q.WithContext(ctx))
		switch {
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("wait for %s, see %s: %w", n.Name, n.Log("nomad"), err)
		case err == nil && wanted(node):
			return nil
		case err == nil:
			q.WaitIndex = meta.LastIndex
		case !unknown(err):
			return fmt.Errorf("wait for %s: %w", n.Name, err)
		default:
			time.Sleep(retryPause)
		}
	}
}

// unknown reports whether Nomad answered 404, not found.
func unknown(err error) bool {
	var refused api.UnexpectedResponseError
	return errors.As(err, &refused) && refused.StatusCode() == http.StatusNotFound
}

// answerTime is how long an agent that starts may take for an answer: it can accept a connection that
// it never answers.
const answerTime = 10 * time.Second

// retryPause is the time between two questions that Nomad cannot block on.
const retryPause = 50 * time.Millisecond

// retry calls f until it succeeds, the program that it speaks to ends, or the
// context does.
func retry(ctx context.Context, what string, ended <-chan struct{}, log string, f func() error) error {
	tick := time.NewTicker(retryPause)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return fmt.Errorf("%s: it ended:\n%s", what, tail(log))
		case <-ctx.Done():
			return fmt.Errorf("%s, see %s: %w (%w)", what, log, err, ctx.Err())
		}
	}
}

// tail returns the end of a log, for a message.
func tail(log string) string {
	const most = 4000
	text, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

// FreePorts finds ports of the loopback that are free, and keeps them from other tests, in
// this process and in others, until the process ends. They lie below those that the kernel
// gives to outgoing connections, which would else take one before its program does.
func FreePorts(count int) ([]int, error) {
	const first, behind = 20000, 32768
	var ports []int
	for tries := 0; len(ports) < count; tries++ {
		port := first + rand.IntN(behind-first)
		err := claim(port)
		if errors.Is(err, syscall.EADDRINUSE) && tries < 1000 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// claim takes a port that nothing listens on. The claim is a Unix socket of that name, which
// the kernel gives to one process and takes back when that ends.
func claim(port int) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Bind(socket, &unix.SockaddrUnix{Name: fmt.Sprintf("@nomad-gpu-port-%d", port)})
	if err == nil {
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return listener.Close()
		}
	}
	return errors.Join(err, unix.Close(socket))
}
