// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A daemon that was started with -S gives each client multiprocessors of its own, in
// partitions of whole chunks (8 multiprocessors from Hopper on, fewer before). A program
// names its partition in CUDA_MPS_SM_PARTITION; one that names none gets an error.

// Partitions is how the multiprocessors of a daemon's device are divided.
type Partitions struct {
	// Chunks and Multiprocessors are the device's, FreeChunks those in no partition.
	Chunks, FreeChunks, Multiprocessors int
	All                                 []Partition
}

// Partition is a part of a device's multiprocessors. ID is the daemon's name for it,
// which a later partition may have again. Used says that programs run on it.
type Partition struct {
	ID     string
	Chunks int
	Used   bool
}

// ErrNoRoom means that a device has not as many chunks free as were asked for.
var ErrNoRoom = errors.New("too few chunks of multiprocessors are free")

// Partitions lists the partitions of the daemon's device. Without a server there is
// nothing to list.
func (c Control) Partitions(ctx context.Context) (Partitions, error) {
	const command = "lspart"
	answer, err := c.Value(ctx, command)
	if err != nil {
		return Partitions{}, err
	}
	p, err := parsePartitions(answer)
	if err != nil {
		return p, fmt.Errorf("ask MPS control daemon %q: %w", command, err)
	}
	return p, nil
}

// parsePartitions reads the table: after its head a line of each device, with its free
// and used chunks and multiprocessors, and below it one of each of its partitions, with
// its chunks and multiprocessors and whether it has clients. Some releases write "-" in
// columns that a line does not have.
func parsePartitions(table string) (Partitions, error) {
	var p Partitions
	devices := 0
	for line := range strings.Lines(table) {
		fields := slices.DeleteFunc(strings.Fields(line), func(field string) bool { return field == "-" })
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "GPU-") && !strings.HasPrefix(fields[0], "MIG-") {
			continue // the head
		}
		if len(fields) != 5 {
			return p, fmt.Errorf("line %q is neither a device's nor a partition's", strings.TrimSpace(line))
		}
		if used := fields[4]; used == "Yes" || used == "No" {
			chunks, err := strconv.Atoi(fields[2])
			if err != nil {
				return p, fmt.Errorf("line %q: %w", strings.TrimSpace(line), err)
			}
			p.All = append(p.All, Partition{ID: fields[1], Chunks: chunks, Used: used == "Yes"})
			continue
		}
		var numbers [4]int
		for i, field := range fields[1:] {
			var err error
			if numbers[i], err = strconv.Atoi(field); err != nil {
				return p, fmt.Errorf("line %q: %w", strings.TrimSpace(line), err)
			}
		}
		devices++
		p.FreeChunks, p.Chunks, p.Multiprocessors = numbers[0], numbers[0]+numbers[1], numbers[2]+numbers[3]
	}
	if devices != 1 {
		return p, fmt.Errorf("it tells of %d devices, not of one", devices)
	}
	return p, nil
}

// AddPartition makes a partition of a device and returns its ID. ErrNoRoom says that
// there are too few chunks.
func (c Control) AddPartition(ctx context.Context, uuid string, chunks int) (string, error) {
	command := fmt.Sprintf("sm_partition add %s %d", uuid, chunks)
	answer, err := c.Ask(ctx, command)
	if err != nil {
		return "", err
	}
	if strings.Contains(answer, "INVALID_RESOURCE_CONFIGURATION") {
		return "", fmt.Errorf("ask MPS control daemon %q: %w (%s)", command, ErrNoRoom, FirstLine(answer))
	}
	// "Partition GPU-…/ID created", or the name alone. An ID may have slashes.
	for _, word := range strings.Fields(answer) {
		if device, id, found := strings.Cut(word, "/"); found && id != "" && device != "" && strings.HasPrefix(uuid, device) {
			return id, nil
		}
	}
	return "", fmt.Errorf("ask MPS control daemon %q: answer %q names no partition", command, FirstLine(answer))
}

// RemovePartition gives a partition's multiprocessors back. One that is not there is
// removed already; one with clients stays, and that is an error.
func (c Control) RemovePartition(ctx context.Context, uuid, id string) error {
	command := fmt.Sprintf("sm_partition rm %s %s", uuid, id)
	answer, err := c.Ask(ctx, command)
	if err != nil {
		return err
	}
	left, err := c.Partitions(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(left.All, func(p Partition) bool { return p.ID == id }) {
		return fmt.Errorf("ask MPS control daemon %q: the partition is still there: %s", command, FirstLine(answer))
	}
	return nil
}
