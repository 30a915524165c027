// SPDX-License-Identifier: MPL-2.0

package record

import (
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// ExitLabels are how an exit is written down.
func ExitLabels(exit runtime.Exit) map[string]string {
	return map[string]string{
		labelExitCode: strconv.Itoa(exit.Code),
		labelExitAt:   exit.At.UTC().Format(time.RFC3339Nano),
		labelExitOOM:  strconv.FormatBool(exit.OOMKilled),
	}
}

// ExitOf reads the exit that an earlier process of the driver saw.
func ExitOf(labels map[string]string) (runtime.Exit, bool) {
	code, err := strconv.Atoi(labels[labelExitCode])
	if err != nil {
		return runtime.Exit{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, labels[labelExitAt])
	if err != nil {
		return runtime.Exit{}, false
	}
	return runtime.Exit{Code: code, At: at, OOMKilled: labels[labelExitOOM] == "true"}, true
}
