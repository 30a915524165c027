// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// What the kernel takes when it starts a program, with the usual stack of 8 MiB:
// in one argument or variable without the NUL behind it, and in all of them with a
// NUL and a pointer for each.
const (
	maxText  = 128<<10 - 1
	maxTexts = 2 << 20
	perText  = 1 + 8
)

// checkProcess reports arguments and variables that no program can be started
// with. They may be the image's, whose author need not be the job's.
func checkProcess(args, env []string) error {
	total := 0
	for _, text := range slices.Concat(args, env) {
		total += len(text) + perText
	}
	for _, arg := range args {
		if !taskconfig.ValidText(arg) {
			return fmt.Errorf("argument %.80q is not valid text: write UTF-8 without NUL", arg)
		}
		if len(arg) > maxText {
			return fmt.Errorf("argument %.80q has %d bytes, the kernel takes %d; put it into a file", arg, len(arg), maxText)
		}
	}
	for _, entry := range env {
		key, _, _ := strings.Cut(entry, "=")
		if !taskconfig.ValidText(entry) {
			return fmt.Errorf("environment: variable %.80q is not valid text: write UTF-8 without NUL", key)
		}
		if len(entry) > maxText {
			return fmt.Errorf("environment: variable %.80q has %d bytes, the kernel takes %d; put the value into a file", key, len(entry), maxText)
		}
	}
	if total > maxTexts {
		return fmt.Errorf("environment and arguments have %d bytes together, the kernel takes %d", total, maxTexts)
	}
	return nil
}
