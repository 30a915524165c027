// SPDX-License-Identifier: MPL-2.0

// Package nomad pins the Nomad that the tests run, and holds what the driver's
// tests know of Nomad's docker driver against its code.
package nomad
