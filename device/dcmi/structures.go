// SPDX-License-Identifier: MPL-2.0

package dcmi

import _ "embed" // the header below

// Structures is the header of the structures that DCMI's functions fill, for what stands in
// for the library.
//
//go:embed structures.h
var Structures []byte
