// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// Vendor is the vendor of every device that this backend sees.
const Vendor = "amd"

// Backend sees the GPUs of one machine. Its methods may be called from many
// goroutines.
type Backend struct {
	tree    sysfs.Tree
	guard   *guard.Guard
	refresh func()
	listen  func(context.Context, func(sysfs.Uevent)) error
	clients *sysfs.Clients

	// read are the nodes as they were in a generation of the topology; only the survey
	// uses them.
	read       []node
	generation string

	found sysfs.Found[seen]
}

// seen is a GPU or a partition as the last survey found it.
type seen struct {
	card      card
	owner     string
	partition bool
	// part is which of its GPU's partitions it is, parts how many the GPU shows.
	part, parts int
	// mode is how the GPU is partitioned; empty where the kernel does not tell.
	mode string
}

// New makes a backend that has looked at nothing yet.
func New(o sysfs.Options) *Backend {
	o = o.Filled()
	tree := sysfs.Tree{Root: o.Root}
	return &Backend{tree: tree, guard: guard.New(o.Timeout), refresh: o.Refresh, listen: o.Listen, clients: &sysfs.Clients{Tree: tree, Now: o.Now}}
}

// Close has nothing to let go of.
func (b *Backend) Close() {}

// Release does something: no GPU is held open.
func (b *Backend) Release(f func() error) error { return f() }

// on runs f with a device of the last survey, bounded in time.
func on[T any](b *Backend, uuid string, f func(seen) T) (T, error) {
	b.refresh()
	return sysfs.Ask(&b.found, b.guard, uuid, func(s seen) string { return s.owner }, f)
}

// Probe tries whether a GPU works again: the driver shows its nodes, opens them and
// reads its sensors. Whether a kernel runs on it, only a program of ROCm's could tell.
func (b *Backend) Probe(what hardware.ProbeTarget) error {
	err, callErr := on(b, what.UUID, func(s seen) error {
		first := s.card.first()
		if !b.tree.Has(pciDir(first)) {
			return errors.New("the device is not on the bus")
		}
		for _, name := range []string{"kfd", fmt.Sprintf("dri/renderD%d", first.renderMinor)} {
			node, err := os.OpenFile(b.tree.Path("dev", name), os.O_RDWR, 0)
			if err != nil {
				return fmt.Errorf("open it: %w", err)
			}
			node.Close()
		}
		return nil
	})
	return errors.Join(callErr, err)
}

// Layout puts a GPU into a partition mode: one profile such as "cpx" or "cpx-nps4". The
// driver refuses that while anything is on the GPU.
func (b *Backend) Layout(uuid string, profiles []string) error {
	if len(profiles) != 1 {
		return fmt.Errorf("%d profiles: a GPU of AMD has one mode for all partitions, such as \"cpx-nps4\"", len(profiles))
	}
	err, callErr := on(b, uuid, func(s seen) error { return b.setMode(pciDir(s.card.first()), profiles[0]) })
	return errors.Join(callErr, err)
}

func (b *Backend) setMode(dir, profile string) error {
	compute, memory, _ := strings.Cut(strings.ToUpper(profile), "-")
	for _, mode := range []struct{ kind, value string }{{"memory", memory}, {"compute", compute}} {
		current := "current_" + mode.kind + "_partition"
		if mode.value == "" || b.tree.Line(dir, current) == mode.value {
			continue
		}
		if offered := b.tree.Line(dir, "available_"+mode.kind+"_partition"); !strings.Contains(" "+strings.ReplaceAll(offered, ",", " ")+" ", " "+mode.value+" ") {
			return fmt.Errorf("the GPU has no %s partition mode %s; it has %q", mode.kind, mode.value, offered)
		}
		if err := b.tree.Write(mode.value, dir, current); err != nil {
			return fmt.Errorf("set the %s partition mode %s: %w", mode.kind, mode.value, err)
		}
	}
	return nil
}
