// SPDX-License-Identifier: MPL-2.0

package dcmi

// #include "dcmi.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// Device is one of the machine's, by the number of its card and its own on the card.
type Device struct {
	library      *Library
	Card, Number int
}

// String is the device as npu-smi counts it.
func (d Device) String() string { return fmt.Sprintf("NPU %d chip %d", d.Card, d.Number) }

// fill calls a function that fills one structure.
func (d Device) fill(name string, into unsafe.Pointer) error {
	return d.library.call(name, func(s unsafe.Pointer) C.int { return C.callIIP(s, C.int(d.Card), C.int(d.Number), into) })
}

// fillOf calls a function that fills one structure about one of several things.
func (d Device) fillOf(name string, which int, into unsafe.Pointer) error {
	return d.library.call(name, func(s unsafe.Pointer) C.int { return C.callIIIP(s, C.int(d.Card), C.int(d.Number), C.int(which), into) })
}

// IsNPU tells an NPU from the card's controller and CPU.
func (d Device) IsNPU() (bool, error) {
	var kind C.int
	err := d.fill("dcmi_get_device_type", unsafe.Pointer(&kind))
	return kind == 0, err
}

// Chip is what the processor is.
type Chip struct {
	// Name is "910B3", Version "V1".
	Name, Version string
	AICores       int
}

// Chip asks which processor it is.
func (d Device) Chip() (Chip, error) {
	var c C.Chip
	err := d.fill("dcmi_get_device_chip_info", unsafe.Pointer(&c))
	return Chip{Name: goText(c.name[:]), Version: goText(c.version[:]), AICores: int(c.aicores)}, err
}

func goText(text []C.uchar) string {
	return strings.TrimSpace(cString(unsafe.Slice((*byte)(unsafe.Pointer(&text[0])), len(text))))
}

// verticalDie is the die that a processor is known by.
const verticalDie = 1

// DieID is the ID burned into the processor, in hexadecimal: five parts of eight digits.
// It is empty where nothing is.
func (d Device) DieID() (string, error) {
	var die C.Die
	if err := d.fillOf("dcmi_get_device_die_v2", verticalDie, unsafe.Pointer(&die)); err != nil {
		return "", err
	}
	parts, burned := make([]string, len(die.part)), false
	for n, part := range die.part {
		parts[n], burned = fmt.Sprintf("%08x", uint32(part)), burned || part != 0
	}
	if !burned {
		return "", nil
	}
	return strings.Join(parts, "-"), nil
}

// PCI is the address as sysfs writes it. Libraries that do not tell the domain have
// machines of one.
func (d Device) PCI() (string, error) {
	var p C.PCI
	err := d.fill("dcmi_get_device_pcie_info_v2", unsafe.Pointer(&p))
	if errors.Is(err, ErrUnsupported) {
		var old C.OldPCI
		err = d.fill("dcmi_get_device_pcie_info", unsafe.Pointer(&old))
		p.bus, p.slot, p.function = old.bus, old.slot, old.function
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", uint32(p.domain), uint32(p.bus), uint32(p.slot), uint32(p.function)), err
}

// Numbers are the device's among all: by the logical one programs count, the physical one
// is that of its node, /dev/davinci<N>.
func (d Device) Numbers() (logical, physical int, err error) {
	var l C.int
	err = d.library.call("dcmi_get_device_logic_id", func(s unsafe.Pointer) C.int {
		return C.callPII(s, unsafe.Pointer(&l), C.int(d.Card), C.int(d.Number))
	})
	if err != nil {
		return 0, 0, err
	}
	var p C.uint
	err = d.library.call("dcmi_get_device_phyid_from_logicid", func(s unsafe.Pointer) C.int { return C.callIP(s, l, unsafe.Pointer(&p)) })
	return int(l), int(p), err
}

// Health is how bad the worst fault of a device is.
type Health uint32

// The grades of health. Missing is a device that is not there, or has not started.
const (
	Well     Health = 0
	Minor    Health = 1
	Major    Health = 2
	Critical Health = 3
	Missing  Health = 0xffffffff
)

// Health asks how a device is.
func (d Device) Health() (Health, error) {
	var h C.uint
	err := d.fill("dcmi_get_device_health", unsafe.Pointer(&h))
	return Health(h), err
}

// mostFaults is how many fault codes a device tells of.
const mostFaults = 128

// Faults are the codes of the faults that stand.
func (d Device) Faults() ([]uint32, error) {
	var count C.int
	var codes [mostFaults]C.uint
	err := d.library.call("dcmi_get_device_errorcode_v2", func(s unsafe.Pointer) C.int {
		return C.callIIPPI(s, C.int(d.Card), C.int(d.Number), unsafe.Pointer(&count), unsafe.Pointer(&codes), mostFaults)
	})
	var all []uint32
	for _, code := range codes[:min(max(count, 0), mostFaults)] {
		all = append(all, uint32(code))
	}
	return all, err
}

// FaultText is what the driver says of a fault code.
func (d Device) FaultText(code uint32) (string, error) {
	var text [256]byte
	err := d.library.call("dcmi_get_device_errorcode_string", func(s unsafe.Pointer) C.int {
		return C.callIIIPI(s, C.int(d.Card), C.int(d.Number), C.uint(code), unsafe.Pointer(&text), C.int(len(text)))
	})
	return strings.TrimSpace(strings.ToValidUTF8(cString(text[:]), "?")), err
}

// Topology says how a device is joined to another.
func (d Device) Topology(other Device) (int, error) {
	var kind C.int
	err := d.library.call("dcmi_get_topo_info_by_device_id", func(s unsafe.Pointer) C.int {
		return C.callIIIIP(s, C.int(d.Card), C.int(d.Number), C.int(other.Card), C.int(other.Number), unsafe.Pointer(&kind))
	})
	return int(kind), err
}

// The topologies of devices that HCCS joins: directly, and by switches.
const (
	TopologyHCCS         = 3
	TopologyHCCSSwitched = 7
)
