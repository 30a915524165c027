// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"context"
	"time"
)

// Options say where a vendor's backend looks.
type Options struct {
	// Root is that of the file system with /sys, /proc, /dev and the vendor's driver; "/"
	// but for tests and simulations.
	Root string
	// Timeout bounds the questions to one device.
	Timeout time.Duration
	// Refresh is called before anything is read; nil for nothing.
	Refresh func()
	// Listen hears the kernel's messages; nil is the kernel.
	Listen func(context.Context, func(Uevent)) error
	// Now tells the time; nil is the clock.
	Now func() time.Time
}

// Filled are the options with all that was left out.
func (o Options) Filled() Options {
	if o.Refresh == nil {
		o.Refresh = func() {}
	}
	if o.Listen == nil {
		o.Listen = Listen
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}
