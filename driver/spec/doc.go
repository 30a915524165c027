// SPDX-License-Identifier: MPL-2.0

// Package spec turns what a task asks for into what a container is: the GPU
// share that its reservations give it, its environment, and the OCI
// specification.
//
// It is pure. It reads no file, no clock and no network: whoever calls it has
// read the node's state before, and runs the result afterwards. What needs the
// image's own files (a user's name) or the host's (CDI specs) is therefore not
// here.
package spec
