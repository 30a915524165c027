// SPDX-License-Identifier: MPL-2.0

// Package cluster runs a whole Nomad installation on one machine: servers, and
// any number of simulated machines with a container runtime, a Nomad client and
// nomad-gpu's two plugins as processes of that client.
//
//	c, err := cluster.Start(ctx, cluster.Options{Nodes: []cluster.NodeOptions{{Topology: "dgx.hcl"}}})
//	defer c.Close()
//	alloc, err := c.RunFile(ctx, "examples/slice.nomad.hcl")
//
// Every simulated machine is a PID and a mount namespace (see e2e/node): it has
// its own boot ID, /run and process IDs, and vanishes with all that it mounted
// when its first process is killed. The plugins therefore run with their default
// paths, and nothing of the host's containerd is seen or touched. The network is
// the host's loopback.
//
// The end-to-end tests, the demo and "make dev" all stand on this package.
package cluster
