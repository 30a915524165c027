// SPDX-License-Identifier: MPL-2.0

// Package contract crosses the gaps between the parts, which know each other only
// by their files and messages: from a simulated machine through the device plugin's real
// fingerprint to the placement service's picture of the node, and from a real
// reservation to the driver's container.
package contract
