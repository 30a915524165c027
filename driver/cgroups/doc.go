// Package cgroups finds the control groups of containers, keeps them to the cores that
// Nomad shares, and empties and removes what a container runtime left of them. What is
// killed here is killed without containerd, and waited for.
package cgroups
