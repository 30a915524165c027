// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// errUntrue means that a daemon or its server does not have the limits that it
// was given.
var errUntrue = errors.New("the limits are not as set")

// A holder has limits: the daemon, which gives them to its next server, or a
// running server, which gives them to its next clients.
type holder struct {
	what string
	// get and set are the beginnings of commands: what follows is the device.
	getMemory, setMemory, getPercent, setPercent string
}

var daemonLimits = holder{"daemon",
	"get_default_device_pinned_mem_limit 0", "set_default_device_pinned_mem_limit 0",
	"get_default_active_thread_percentage", "set_default_active_thread_percentage"}

func serverLimits(pid int) holder {
	return holder{"server",
		fmt.Sprintf("get_device_pinned_mem_limit %d 0", pid), fmt.Sprintf("set_device_pinned_mem_limit %d 0", pid),
		fmt.Sprintf("get_active_thread_percentage %d", pid), fmt.Sprintf("set_active_thread_percentage %d", pid)}
}

// setLimits gives a holder its limits and reads them back: what takes a command
// need not have understood it.
func (c control) setLimits(ctx context.Context, h holder, s Spec) error {
	_, err := c.Ask(ctx, fmt.Sprintf("%s %dM", h.setMemory, s.MemoryMiB)) // 0 sets none
	switch {
	case errors.Is(err, mpsctl.ErrUnknown) && s.MemoryMiB > 0:
		return errNoMemoryLimits
	case err != nil && !errors.Is(err, mpsctl.ErrUnknown):
		return err
	}
	if c.partitioned {
		return c.confirmLimits(ctx, h, s)
	}
	if _, err := c.Ask(ctx, fmt.Sprintf("%s %d", h.setPercent, s.Percent)); err != nil {
		return err
	}
	return c.confirmLimits(ctx, h, s)
}

// confirmLimits asks whether the limits are in force.
func (c control) confirmLimits(ctx context.Context, h holder, s Spec) error {
	answer, err := c.Value(ctx, h.getMemory)
	switch {
	case errors.Is(err, mpsctl.ErrUnknown) && s.MemoryMiB > 0:
		return errNoMemoryLimits
	case err != nil && !errors.Is(err, mpsctl.ErrUnknown):
		return err
	case err == nil && !mpsctl.SameMemory(answer, s.MemoryMiB):
		return fmt.Errorf("%w: the memory limit of the %s is %q, not %dM", errUntrue, h.what, mpsctl.FirstLine(answer), s.MemoryMiB)
	}
	if c.partitioned {
		return nil // partitions are in the place of percentages
	}
	answer, err = c.Value(ctx, h.getPercent)
	if err != nil {
		return err
	}
	if percent, err := strconv.ParseFloat(strings.TrimSuffix(mpsctl.FirstLine(answer), "%"), 64); err != nil || int(percent+0.5) != s.Percent {
		return fmt.Errorf("%w: the thread percentage of the %s is %q, not %d", errUntrue, h.what, mpsctl.FirstLine(answer), s.Percent)
	}
	return nil
}

// errNoMemoryLimits is the reason on branches that lack them.
var errNoMemoryLimits = &actionError{
	reason: "the MPS of this driver has no memory limits, and without them slices could not be kept apart",
	action: "install a driver of branch 535 or newer, or offer this GPU as \"shared\" or with sharing = \"timeslice\"",
}

// actionError is a reason with something to do about it.
type actionError struct{ reason, action string }

func (e *actionError) Error() string { return e.reason }
