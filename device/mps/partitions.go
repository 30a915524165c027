// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// With static partitioning every client has multiprocessors of its own, in a partition
// that the task driver makes for its task. A program without one gets an error, and
// percentages of threads mean nothing.

// staticFlag is the control program's option for that, from CUDA 13.1 on.
const staticFlag = "-S"

// Partitioning is how a daemon divides its device's multiprocessors.
type Partitioning struct {
	// Static daemons divide them into partitions of whole chunks.
	Static bool
	// Chunks and Multiprocessors are how many the device has.
	Chunks, Multiprocessors int
}

// staticDaemon reports whether a daemon was started with the option. Programs that do
// not know it do not start.
func staticDaemon(pid int) bool {
	return slices.ContainsFunc(arguments(pid), func(arg string) bool { return arg == staticFlag || arg == "--static-partitioning" })
}

var (
	errOtherPartitioning = &actionError{
		reason: "its control daemon divides the multiprocessors in another way than is configured (mps { static_partitioning })",
		action: "it is replaced when no task is on the device",
	}
	errPartitionsLost = errors.New("its server has ended, and with it the partitions of its tasks: the control daemon is replaced")
)

// noStatic is the reason where the control program does not start with the option.
func noStatic(why error) error {
	return &actionError{
		reason: fmt.Sprintf("the MPS of this driver does not start with static partitions (%s): %v", staticFlag, why),
		action: "install a driver of CUDA 13.1 or newer (branch 590), or take mps { static_partitioning } out of the configuration",
	}
}

// partitioning asks how the daemon divides its device. One whose server is another than
// before has lost the partitions of its tasks: it is ended, so that they are told as of
// any daemon that is gone.
func (k *keeper) partitioning(ctx context.Context, daemon *daemonRecord, server int) (Partitioning, error) {
	if !staticDaemon(daemon.Process.PID) {
		return Partitioning{}, nil
	}
	if daemon.Server != 0 && daemon.Server != server {
		k.ended = "its server ended, and with it the partitions of its tasks"
		return Partitioning{}, errors.Join(errPartitionsLost, k.control.endLeftovers(k.log))
	}
	p, err := k.control.Partitions(ctx)
	if errors.Is(err, mpsctl.ErrUnknown) {
		err = noStatic(err)
	}
	if err != nil {
		return Partitioning{}, err
	}
	daemon.Server = server
	return Partitioning{Static: true, Chunks: p.Chunks, Multiprocessors: p.Multiprocessors}, k.writeRecord(*daemon)
}
