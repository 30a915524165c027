// SPDX-License-Identifier: MPL-2.0

// Package house holds the repository to its own rules: who may import whom, that
// pure packages stay pure, and that versions and targets are those that the documents
// say. It has tests only.
package house
