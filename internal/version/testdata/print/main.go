// SPDX-License-Identifier: MPL-2.0

// Command print is a program as the build links it.
package main

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

func main() { fmt.Print(version.String()) }
