// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// NodeOptions describes one simulated machine.
type NodeOptions struct {
	// Name defaults to "node-<i>".
	Name string
	// Topology is the file that says which GPUs the machine has; empty takes the
	// real ones of this machine.
	Topology string
	// GPUs and Driver are added to the two plugins' configurations.
	GPUs, Driver string
	// MPS is added to the mps block of the first, on simulated GPUs.
	MPS string
	// MPSBranch is the driver branch that the stand-in for NVIDIA's MPS control program
	// answers as; empty for the usual.
	MPSBranch string
	// Plugins are further plugins' programs, by name; the client loads them beside ours.
	Plugins map[string]string
	// Networks are lists of CNI plugins, by the network's name.
	Networks map[string]string
	// Docker starts a Docker engine beside containerd.
	Docker bool
}

// Node is one simulated machine with containerd and a Nomad client.
type Node struct {
	Name string
	// ID is what Nomad calls the node.
	ID string
	// API speaks to the node's agent, URL is its address.
	API *api.Client
	URL string
	// Ready says when a node that starts counts as ready; AllHealthy unless a
	// test wants GPUs that are not.
	Ready func(*api.Node) bool

	cluster *Cluster
	options NodeOptions
	dir     string
	machine *machine
}

// The command lines by which a node's processes are told apart.
const (
	devicePlugin = "nomad-device-gpu"
	driverPlugin = "nomad-driver-containerd"
)

// PowerOn boots the machine and returns when Nomad may place work on it.
func (n *Node) PowerOn(ctx context.Context) (err error) {
	o := n.cluster.options
	if n.machine, err = bootMachine(ctx, filepath.Join(o.Bin, "e2e"), n.dir, o.Detached); err != nil {
		return err
	}
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	if n.options.Docker {
		if err := n.StartDocker(ctx); err != nil {
			return err
		}
	}
	return n.StartClient(ctx)
}

// Configure changes the options with which the node's client starts from now on.
func (n *Node) Configure(change func(*NodeOptions)) { change(&n.options) }

// AllHealthy reports whether the node offers GPUs and all of them are healthy.
func AllHealthy(node *api.Node) bool {
	if node.NodeResources == nil || len(node.NodeResources.Devices) == 0 {
		return false
	}
	for _, group := range node.NodeResources.Devices {
		for _, instance := range group.Instances {
			if !instance.Healthy {
				return false
			}
		}
	}
	return true
}

// Ready reports whether Nomad may place any work on the node.
func Ready(node *api.Node) bool { return takesWork(node) && AllHealthy(node) }

func takesWork(node *api.Node) bool {
	driver := node.Drivers["containerd"]
	return node.Status == api.NodeStatusReady && driver != nil && driver.Healthy
}

// PowerOff ends everything on the machine at once, as pulling the plug would.
func (n *Node) PowerOff() error {
	if n.machine == nil {
		return nil
	}
	err := n.machine.powerOff()
	n.machine = nil
	return errors.Join(err, removeNodeCgroups(n.dir))
}

// Reboot pulls the plug and boots again: no process is left, /run is empty and
// the boot ID is another. Between the two, the caller may change the machine.
func (n *Node) Reboot(ctx context.Context, meanwhile ...func() error) error {
	if err := n.PowerOff(); err != nil {
		return err
	}
	for _, change := range meanwhile {
		if err := change(); err != nil {
			return err
		}
	}
	return n.PowerOn(ctx)
}

// State reads the files that the two plugins share.
func (n *Node) State() (*statedir.Dir, error) {
	bootID, err := os.ReadFile(filepath.Join(n.dir, "boot_id"))
	if err != nil {
		return nil, fmt.Errorf("read state of %s: %w", n.Name, err)
	}
	return statedir.Open(n.machine.path(statedir.Default), strings.TrimSpace(string(bootID)))
}

// SimDir is the simulator's folder: see device/sim for what may be written.
func (n *Node) SimDir() string { return filepath.Join(n.dir, "sim") }

// Dir is a folder of the node's own, which goes with the cluster.
func (n *Node) Dir(name string) string { return filepath.Join(n.dir, name) }

// TaskCgroup is the control group of the node's containers.
func (n *Node) TaskCgroup() string { return taskCgroup(n.dir) }

// Path is where the host finds one of the machine's files.
func (n *Node) Path(inside string) string { return n.machine.path(inside) }

// Command runs a program on the machine to its end and returns its output.
func (n *Node) Command(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
	return n.machine.run(ctx, stdin, argv...)
}

// KillDevicePlugin ends the device plugin with SIGKILL; Nomad starts it again.
func (n *Node) KillDevicePlugin() error { return n.kill(devicePlugin) }

// KillDriverPlugin ends the task driver with SIGKILL; Nomad starts it again.
func (n *Node) KillDriverPlugin() error { return n.kill(driverPlugin) }

// KillClient ends the Nomad client with SIGKILL, and with it nothing else.
func (n *Node) KillClient() error { return n.kill("nomad agent") }

// KillContainerd ends containerd with SIGKILL; the containers go on.
func (n *Node) KillContainerd() error { return n.kill("containerd --config") }

// PIDs lists the machine's processes whose command line holds all the words.
func (n *Node) PIDs(words ...string) ([]int, error) { return n.machine.processes(words...) }

// WaitPID returns the only process whose command line holds all the words, once
// there is one that is not old.
func (n *Node) WaitPID(ctx context.Context, old int, words ...string) (int, error) {
	var pid int
	err := retry(ctx, fmt.Sprintf("wait for %q on %s", words, n.Name), nil, n.Log("nomad"), func() error {
		pids, err := n.PIDs(words...)
		if err == nil && (len(pids) != 1 || pids[0] == old) {
			err = fmt.Errorf("processes are %v, and the old one was %d", pids, old)
		}
		if err == nil {
			pid = pids[0]
		}
		return err
	})
	return pid, err
}

func (n *Node) kill(command string) error {
	pids, err := n.PIDs(command)
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("kill %q on %s: no such process", command, n.Name)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %q on %s: %w", command, n.Name, err)
		}
	}
	return nil
}

// Log returns where one of the node's programs writes: "nomad",
// "containerd" or "dockerd".
func (n *Node) Log(program string) string { return filepath.Join(n.dir, program+".log") }
