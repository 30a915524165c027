// SPDX-License-Identifier: MPL-2.0

// Package leases writes the driver's record, for all of the node, of each task's share
// of each GPU. A claim is made before a task starts, and is refused where the live leases
// leave no room for it.
package leases
