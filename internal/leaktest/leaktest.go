// SPDX-License-Identifier: MPL-2.0

// Package leaktest finds goroutines that outlive the tests of a package. It is goleak
// with patience: by itself goleak gives a goroutine that is about to end less than half a
// second, in which it may not run once on a busy machine.
package leaktest

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience is for what ends by itself, however busy the machine is.
const patience = time.Minute

// Main runs the tests of a package, and fails if goroutines are left that are not ignored.
func Main(m interface{ Run() int }, ignored ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := Find(ignored...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Find waits until only ignored goroutines are left. The error lists those that stay.
func Find(ignored ...goleak.Option) error {
	for end := time.Now().Add(patience); ; {
		if err := goleak.Find(ignored...); err == nil || time.Now().After(end) {
			return err
		}
	}
}
