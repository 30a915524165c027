// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"syscall"

	"github.com/moby/sys/signal"
)

// stopSignal is the job's kill_signal, else the image's, else SIGTERM.
func stopSignal(names ...string) (syscall.Signal, error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		number, err := parseSignal(name)
		if err != nil {
			return 0, fmt.Errorf("stop %w", err)
		}
		return number, nil
	}
	return syscall.SIGTERM, nil
}

// parseSignal reads a signal's name or number.
func parseSignal(name string) (syscall.Signal, error) {
	number, err := signal.ParseSignal(name)
	if err != nil || !signal.ValidSignalForPlatform(number) {
		return 0, fmt.Errorf("signal %q is none: write a name such as \"SIGINT\", or its number", name)
	}
	return number, nil
}
