// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	hw "github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Kernel is the machine's cards as Linux shows them: a file system with /sys, /proc
// and /dev of its own, made again whenever something happens to the machine.
type Kernel struct {
	topology *Topology
	dir      string
	control  *watchedControl
	settings *hardware

	mu         sync.Mutex
	stamp      string // for what the files were made
	generation uint32 // stamp as a number, as KFD numbers its changes
}

// NewKernel starts the kernel of a machine.
func NewKernel(t *Topology, o Options) (*Kernel, error) {
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make simulator folder: %w", err)
	}
	k := &Kernel{topology: t, dir: o.Dir, control: &watchedControl{dir: o.Dir, report: o.Report}}
	var err error
	if k.settings, err = openSettings(filepath.Join(o.Dir, "cards.json"), o.BootID, func(h *hardware) error {
		for i, c := range t.Cards {
			if _, known := h.gpus[t.CardUUID(i)]; !known {
				h.gpus[t.CardUUID(i)] = settings{Mode: c.Mode}
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := k.makeNodes(); err != nil {
		return nil, err
	}
	if err := k.installDCMI(o); err != nil {
		return nil, err
	}
	return k, k.refresh()
}

// Root is where /sys, /proc and /dev of the machine lie.
func (k *Kernel) Root() string { return filepath.Join(k.dir, "root") }

// Refresh brings the files up to date.
func (k *Kernel) Refresh() {
	if err := k.refresh(); err != nil {
		k.control.report(err)
	}
}

func (k *Kernel) refresh() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.control.get()
	modes := make([]string, len(k.topology.Cards))
	for i := range modes {
		modes[i] = k.settings.get(k.topology.CardUUID(i)).Mode
	}
	shown := c // without what no file shows
	shown.GPUs = maps.Clone(c.GPUs)
	for uuid, condition := range shown.GPUs {
		condition.Uevents, condition.ProbeFails = nil, false
		shown.GPUs[uuid] = condition
	}
	stamp := fmt.Sprintf("%+v %v", shown, modes)
	if stamp == k.stamp {
		return nil
	}
	files := fileSet{}
	k.generation = crc32.ChecksumIEEE([]byte(stamp))
	k.amd(c, files)
	k.intel(c, files)
	if err := k.ascend(c, files); err != nil {
		return err
	}
	k.dmem(c, files)
	// Several may be at work in one folder: Nomad configures a plugin that it stops at
	// once, and commands look beside one that runs.
	tree, err := os.MkdirTemp(k.dir, "tree-")
	if err != nil {
		return fmt.Errorf("make simulated files: %w", err)
	}
	if err := files.write(tree); err != nil {
		return err
	}
	name := filepath.Base(tree)
	if err := os.Symlink(filepath.Join(k.dir, "nodes"), filepath.Join(k.dir, name, "dev")); err != nil {
		return fmt.Errorf("make simulated files: %w", err)
	}
	old, _ := os.Readlink(k.Root())
	next := tree + ".next"
	if err := os.Symlink(name, next); err != nil {
		return fmt.Errorf("make simulated files: %w", err)
	}
	if err := os.Rename(next, k.Root()); err != nil {
		return fmt.Errorf("make simulated files: %w", err)
	}
	if strings.HasPrefix(old, "tree-") {
		_ = os.RemoveAll(filepath.Join(k.dir, old))
	}
	k.stamp = stamp
	return nil
}

// fileSet is the content of files by their paths; a value that begins with "->" is a
// symbolic link.
type fileSet map[string]string

func (f fileSet) write(dir string) error {
	for path, text := range f {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make simulated files: %w", err)
		}
		var err error
		if target, link := strings.CutPrefix(text, "->"); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			return fmt.Errorf("make simulated files: %w", err)
		}
	}
	return os.Chmod(dir, 0o755)
}

// number writes a file with a number.
func (f fileSet) number(value int64, path ...string) {
	f[filepath.Join(path...)] = strconv.FormatInt(value, 10) + "\n"
}

func (f fileSet) text(value string, path ...string) { f[filepath.Join(path...)] = value + "\n" }

// The numbers of DRM's device nodes, and one for KFD, which gets its own at run time,
// from the range for local use.
const (
	majorDRM    = 226
	majorKFD    = 241
	firstRender = 128
)

// makeNodes makes the device nodes of all cards, and of as many partitions as they can
// have.
func (k *Kernel) makeNodes() error {
	dir := filepath.Join(k.dir, "nodes")
	if err := os.MkdirAll(filepath.Join(dir, "dri"), 0o755); err != nil {
		return fmt.Errorf("make folder of simulated device nodes: %w", err)
	}
	var all []node
	add := func(name string, major, minor uint32) {
		all = append(all, node{host: filepath.Join(dir, name), major: major, minor: minor})
	}
	drm := uint32(0)
	for _, c := range k.topology.Cards {
		if c.Vendor == "amd" && drm == 0 {
			add("kfd", majorKFD, 0)
		}
		for range c.drmNodes() {
			add(fmt.Sprintf("dri/card%d", drm), majorDRM, drm)
			add(fmt.Sprintf("dri/renderD%d", firstRender+drm), majorDRM, firstRender+drm)
			drm++
		}
	}
	return mknods(append(all, k.ascendNodes(dir)...))
}

// drmNodes is how many of DRM's nodes a card has: as many as it can have partitions.
func (c CardProduct) drmNodes() int {
	if c.Vendor == "huawei" {
		return 0
	}
	return max(1, c.Chiplets)
}

// firstNode is the number of a card's first DRM node.
func (k *Kernel) firstNode(card int) int {
	sum := 0
	for _, c := range k.topology.Cards[:card] {
		sum += c.drmNodes()
	}
	return sum
}

// dmem shows the limits of control groups, where the kernel has them.
func (k *Kernel) dmem(c Control, files fileSet) {
	if !c.Dmem {
		return
	}
	text := ""
	for i, card := range k.topology.Cards {
		if card.drmNodes() == 0 {
			continue
		}
		text += fmt.Sprintf("drm/%s/vram0 %d\n", k.topology.CardPCI(i), card.MemoryMiB<<20)
	}
	files["sys/fs/cgroup/dmem.capacity"] = text
}

// card finds a card by what its backend calls it.
func (k *Kernel) card(uuid string) (int, error) {
	for i := range k.topology.Cards {
		if k.topology.CardUUID(i) == uuid {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the machine has no card %s", uuid)
}

// Probe stands in for the test of whether a card works.
func (k *Kernel) Probe(what hw.ProbeTarget) error {
	if c := k.control.gpu(what.Owner); c.ProbeFails || c.Lost || c.Missing {
		return fmt.Errorf("a simulated program fails on %s", what.UUID)
	}
	return nil
}

// Layout sets a card's partition mode, as a write to the driver's files does.
func (k *Kernel) Layout(uuid string, profiles []string) error {
	i, err := k.card(uuid)
	if err != nil {
		return err
	}
	if len(profiles) != 1 {
		return errors.New("a card has one partition mode")
	}
	if _, err := k.topology.Cards[i].parts(profiles[0]); err != nil {
		return err
	}
	if len(k.control.gpu(uuid).Processes) > 0 {
		return errors.New("the card is in use")
	}
	if err := k.settings.change(uuid, func(s *settings) { s.Mode = profiles[0] }); err != nil {
		return err
	}
	return k.refresh()
}

// kernelPause is how often the control file is looked at for messages.
const kernelPause = 50 * time.Millisecond

// Listen hands on the messages that are appended to a card's uevents from now on, as
// the kernel sends them: "change@/devices/…", and what else is in them.
func (k *Kernel) Listen(ctx context.Context, emit func(message []byte)) error {
	heard := map[string]int{}
	count := func(tell bool) {
		for i := range k.topology.Cards {
			uuid := k.topology.CardUUID(i)
			all := k.control.gpu(uuid).Uevents
			for _, values := range all[min(heard[uuid], len(all)):] {
				if tell {
					emit(fmt.Appendf(nil, "change@/devices/pci0000:00/%s/drm/card%d\x00%s\x00", k.topology.CardPCI(i), k.firstNode(i), values))
				}
			}
			heard[uuid] = len(all)
		}
	}
	count(false)
	tick := time.NewTicker(kernelPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			k.Refresh() // what happens to a device does not wait until it is asked
			count(true)
		}
	}
}
