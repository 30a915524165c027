// SPDX-License-Identifier: MPL-2.0

package ascend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/device/dcmi"
	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// Vendor is the vendor of every device that this backend sees.
const Vendor = "huawei"

// Backend sees the Ascend devices of one machine. Its methods may be called from many
// goroutines.
type Backend struct {
	tree    sysfs.Tree
	guard   *guard.Guard
	refresh func()
	listen  func(context.Context, func(sysfs.Uevent)) error

	// calling is held by all calls of the library, alone by the one that makes it look
	// for cards.
	calling sync.RWMutex
	library *dcmi.Library
	file    os.FileInfo // the library's, as it was when it was opened
	bus     string      // devices on the bus when the library looked

	found sysfs.Found[seen]
	// subscribed are the positions whose faults the driver tells, since the library
	// looked for cards.
	subscribed sync.Map
	// faults are what the driver has told and was not heard yet.
	faults     chan dcmi.Fault
	stopFaults func()
	// last is what each position had when it last answered, kinds are the topologies of
	// two. Only the survey uses them.
	last  map[string]hardware.GPU
	kinds map[[2]string]int
}

// seen is a device, or a vNPU, as the last survey found it.
type seen struct {
	device dcmi.Device
	// physical is the number of the device's node, vnpu that of the vNPU's; 0 for a
	// device.
	physical, vnpu int
	logical        int // the number by which the driver tells of it
	pci            string
}

// position is where a device is: questions to it can hang, also before it has said
// who it is.
func (s seen) position() string { return s.device.String() }

// New makes a backend that has looked at nothing yet.
func New(o sysfs.Options) *Backend {
	o = o.Filled()
	b := &Backend{tree: sysfs.Tree{Root: o.Root}, guard: guard.New(o.Timeout), refresh: o.Refresh, listen: o.Listen,
		last: map[string]hardware.GPU{}, kinds: map[[2]string]int{}, faults: make(chan dcmi.Fault, mostUnheard)}
	b.stopFaults = dcmi.Listen(func(f dcmi.Fault) {
		select {
		case b.faults <- f:
		default:
		}
	})
	return b
}

// Close hears no faults any more. The library stays loaded.
func (b *Backend) Close() { b.stopFaults() }

// Release does something: no device is held open.
func (b *Backend) Release(f func() error) error { return f() }

// errAbsent is a hardware.ErrAbsent.
var errAbsent error = hardware.Absence("the driver of Huawei's devices is not loaded, or its libdcmi.so not installed")

// libraries are where the driver's package puts the library, below its root; by its name
// the dynamic linker finds it elsewhere.
func (b *Backend) libraries() []string {
	found := []string{b.tree.Path("usr/local/dcmi/libdcmi.so"), b.tree.Path(b.driverDir(), "lib64/driver/libdcmi.so")}
	if b.tree.Root == "/" {
		found = append(found, "libdcmi.so")
	}
	return found
}

// driverDir is where the driver was installed.
func (b *Backend) driverDir() string {
	text, _ := b.tree.Text("etc/ascend_install.info")
	for line := range strings.Lines(text) {
		if dir, found := strings.CutPrefix(strings.TrimSpace(line), "Driver_Install_Path_Param="); found && path.IsAbs(dir) {
			return path.Join(dir, "driver")
		}
	}
	return "/usr/local/Ascend/driver"
}

// open opens the library, unless it is open.
func (b *Backend) open() error {
	if b.library != nil {
		return nil
	}
	var failed error
	for _, name := range b.libraries() {
		if _, err := os.Stat(name); path.IsAbs(name) && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		library, err := dcmi.Open(name)
		if err == nil {
			b.library, b.bus = library, ""
			b.file, _ = os.Stat(name)
			return nil
		}
		failed = cmp.Or(failed, err) // a library that is there says more than that another is not
	}
	return cmp.Or(failed, dcmi.ErrUnavailable)
}

// outdated reports whether the library's file is another one than was opened: then the
// driver was upgraded, and only a new process sees the new library.
func (b *Backend) outdated() bool {
	if b.file == nil {
		return false
	}
	for _, name := range b.libraries() {
		if now, err := os.Stat(name); err == nil {
			return !os.SameFile(now, b.file) && !now.ModTime().Equal(b.file.ModTime())
		}
	}
	return false
}

// onBus lists Huawei's accelerators on the bus.
func (b *Backend) onBus() string {
	var all []string
	for _, pci := range b.tree.Names("sys/bus/pci/devices") {
		dir := "sys/bus/pci/devices/" + pci
		vendor, _ := b.tree.Int(dir, "vendor")
		class, _ := b.tree.Int(dir, "class")
		if vendor == 0x19e5 && class>>16 == 0x12 {
			all = append(all, pci)
		}
	}
	return strings.Join(all, " ") + "."
}

// look opens the library, and makes it look for cards where the bus has changed since it
// did. While a call hangs it cannot, and goes by its last finding.
func (b *Backend) look() error {
	now := b.onBus()
	if b.library != nil && now == b.bus || !b.calling.TryLock() {
		return nil
	}
	defer b.calling.Unlock()
	if err := b.open(); err != nil {
		return err
	}
	b.bus, b.kinds = "", map[[2]string]int{}
	b.subscribed.Clear()
	if err := b.library.Init(); err != nil {
		return err
	}
	b.bus = now
	return nil
}

// list lists the devices, and the version of the driver.
func (b *Backend) list() (devices []dcmi.Device, version string, err error) {
	if err := b.look(); err != nil {
		return nil, "", fmt.Errorf("%w: %w", errAbsent, err)
	}
	b.calling.RLock()
	defer b.calling.RUnlock()
	version, err = b.library.DriverVersion()
	if err == nil || errors.Is(err, dcmi.ErrUnsupported) {
		devices, err = b.library.Devices()
	}
	if err != nil {
		b.bus = "" // look again when the driver is back
		return nil, "", fmt.Errorf("%w: %w", errAbsent, err)
	}
	return devices, version, nil
}

// guarded runs f bounded in time, beside other calls of the library. Those that hang keep
// the library from looking for cards.
func guarded[T any](b *Backend, position string, f func() T) (T, error) {
	return guard.Call(b.guard, position, func() T {
		b.calling.RLock()
		defer b.calling.RUnlock()
		return f()
	})
}

// on runs f with a device of the last survey.
func on[T any](b *Backend, uuid string, f func(seen) T) (T, error) {
	b.refresh()
	return sysfs.Ask(&b.found, b.guard, uuid, seen.position, func(s seen) T {
		b.calling.RLock()
		defer b.calling.RUnlock()
		return f(s)
	})
}

// Probe tries whether a device works again: the driver finds nothing wrong with it, and
// its node can be opened. Whether a kernel runs on it, only a program of CANN's could tell.
func (b *Backend) Probe(what hardware.ProbeTarget) error {
	err, callErr := on(b, what.UUID, func(s seen) error {
		health, err := s.device.Health()
		switch {
		case err != nil:
			return err
		case health > dcmi.Minor:
			return fmt.Errorf("its health is %s", gradeNames[health])
		}
		node, err := os.OpenFile(b.tree.Path("dev", s.node()), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open it: %w", err)
		}
		return node.Close()
	})
	return errors.Join(callErr, err)
}

// Watch hears the kernel's messages about the devices, and the driver's about their faults,
// until the context ends. The next survey tells the faults of a device, but for
// faults that did not last.
func (b *Backend) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	byPCI, byNumber := map[string]string{}, map[int]string{}
	for _, uuid := range uuids {
		if s, known := b.found.Lookup(uuid); known && s.vnpu == 0 {
			byPCI[s.pci], byNumber[s.logical] = uuid, uuid
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var hearing sync.WaitGroup
	defer hearing.Wait()
	defer cancel()
	hearing.Go(func() { b.hearFaults(ctx, byNumber, emit) })
	return b.listen(ctx, func(u sysfs.Uevent) {
		if uuid := byPCI[u.PCI()]; uuid != "" && u.Action != "change" {
			emit(hardware.Event{UUID: uuid, GI: hardware.Absent, CI: hardware.Absent, Name: "device " + u.Action})
		}
	})
}
