// SPDX-License-Identifier: MPL-2.0

// Package defaults records what a container has under Docker that asks for
// nothing, from Docker's own code, so that the driver's tests can hold their
// defaults against it without depending on Docker.
package defaults
