// SPDX-License-Identifier: MPL-2.0

// Package e2e holds the end-to-end tests: real Nomad, real containerd and runc,
// the plugins as processes of Nomad's client, on simulated machines (see
// e2e/cluster). What a test shows stands in its name.
package e2e
