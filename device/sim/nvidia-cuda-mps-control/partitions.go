// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// partitions are the parts that static partitioning makes of a device's
// multiprocessors, each a set of whole chunks, by their names. They end with the server:
// NVIDIA does not say that they outlive it.
type partitions map[string][]int

// multiprocessors are the device's, and how many of them are a chunk.
func multiprocessors(pipeDir string) (all, chunk int) {
	for _, line := range behaviors(pipeDir) {
		if n, err := fmt.Sscanf(line, "multiprocessors %d %d", &all, &chunk); n == 2 && err == nil {
			return all, chunk
		}
	}
	return 132, 8 // Hopper's
}

// partition carries out commands about partitions: a daemon that was not started for them,
// or has no server, has none.
func (d *daemon) partition(command string, args []string) []string {
	switch {
	case !slices.Contains(d.args, staticFlag):
		return []string{"Static partitioning is not enabled"}
	case d.server == nil || d.server.UnixConn == nil:
		return nil
	case command == "lspart":
		return d.listPartitions()
	case len(args) != 3 || args[1] != os.Getenv("CUDA_VISIBLE_DEVICES"):
		return []string{"Failed to find the device"}
	case args[0] == "add":
		return d.addPartition(args[1], args[2])
	case args[0] == "rm":
		return d.removePartition(args[2])
	}
	return []string{fmt.Sprintf("Unknown command %q", command+" "+args[0])}
}

func (d *daemon) addPartition(device, amount string) []string {
	all, chunk := multiprocessors(d.pipeDir)
	chunks, err := strconv.Atoi(amount)
	var free []int
	for n := range all / chunk {
		if !d.taken(n) {
			free = append(free, n)
		}
	}
	if err != nil || chunks < 1 || chunks > len(free) {
		return []string{fmt.Sprintf("Failed to fulfill the requested SM partition of %s chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", amount)}
	}
	// The name is which chunks they are: one that was removed can come again.
	mask := make([]byte, 24)
	for _, n := range free[:chunks] {
		mask[n/8] |= 1 << (n % 8)
	}
	id := base64.StdEncoding.EncodeToString(mask)
	d.partitions[id] = free[:chunks]
	return []string{"Partition " + device + "/" + id + " created"}
}

func (d *daemon) taken(chunk int) bool {
	for _, chunks := range d.partitions {
		if slices.Contains(chunks, chunk) {
			return true
		}
	}
	return false
}

func (d *daemon) removePartition(id string) []string {
	switch {
	case d.partitions[id] == nil:
		return []string{"Failed to find the partition"}
	case d.used(id):
		return []string{"Failed to remove the partition, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"}
	}
	delete(d.partitions, id)
	return nil
}

// used reports whether a client has named the partition.
func (d *daemon) used(id string) bool {
	_ = d.server.Send32(opClients)
	count, err := d.server.Receive32()
	used := false
	for ; err == nil && count > 0; count-- {
		var pid uint32
		if pid, err = d.server.Receive32(); err != nil {
			break
		}
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		used = used || strings.Contains("\x00"+string(environment), "\x00CUDA_MPS_SM_PARTITION="+os.Getenv("CUDA_VISIBLE_DEVICES")+"/"+id+"\x00")
	}
	return used
}

// listPartitions prints the table as the originals do: names of devices are cut short.
func (d *daemon) listPartitions() []string {
	all, chunk := multiprocessors(d.pipeDir)
	used := 0
	for _, chunks := range d.partitions {
		used += len(chunks)
	}
	device := os.Getenv("CUDA_VISIBLE_DEVICES")
	device = device[:min(len(device), 12)]
	lines := []string{
		fmt.Sprintf("%-14s %-34s %-7s %-7s %-5s %-5s %s", "GPU", "Partition", "free", "used", "free", "used", "clients"),
		fmt.Sprintf("%-14s %-34s %-7s %-7s %-5s %-5s", "", "", "chunks", "chunks", "SM", "SM"),
		fmt.Sprintf("%-14s %-34s %-7d %-7d %-5d %-5d", device, "", all/chunk-used, used, all-used*chunk, used*chunk),
	}
	for id, chunks := range d.partitions {
		clients := "No"
		if d.used(id) {
			clients = "Yes"
		}
		lines = append(lines, fmt.Sprintf("%-14s %-34s %-7s %-7d %-5s %-5d %s", device, id, "", len(chunks), "", len(chunks)*chunk, clients))
	}
	slices.Sort(lines[3:])
	return lines
}
