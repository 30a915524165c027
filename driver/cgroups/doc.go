// SPDX-License-Identifier: MPL-2.0

// Package cgroups finds the control groups of containers, keeps them to the cores that
// Nomad shares, and empties and removes groups that a container runtime left. Processes are
// killed here without containerd, and waited for.
package cgroups
