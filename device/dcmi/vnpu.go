// SPDX-License-Identifier: MPL-2.0

package dcmi

// #include "dcmi.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// VNPU is a part of a device that the driver keeps apart.
type VNPU struct {
	// ID is the number of its node, /dev/vdavinci<N>.
	ID        int
	Template  string
	MemoryMiB int64
	AICores   float64
}

// The driver's commands about vNPUs.
const (
	managevNPUs  = 52
	resourceOf   = 0
	resourceAll  = 1
	activityOf   = 5
	newID        = 0xffffffff
	templateSize = 32
)

// manage asks one of the commands about vNPUs.
func (d Device) manage(command int, into unsafe.Pointer, size uintptr) error {
	length := C.uint(size)
	return d.library.call("dcmi_get_device_info", func(s unsafe.Pointer) C.int {
		return C.callIIIIPP(s, C.int(d.Card), C.int(d.Number), managevNPUs, C.int(command), into, unsafe.Pointer(&length))
	})
}

// VNPUs lists the numbers of a device's vNPUs.
func (d Device) VNPUs() ([]int, error) {
	var t C.Total
	if err := d.manage(resourceAll, unsafe.Pointer(&t), unsafe.Sizeof(t)); err != nil {
		return nil, err
	}
	var ids []int
	for _, id := range t.ids[:min(t.count, C.uint(len(t.ids)))] {
		ids = append(ids, int(id))
	}
	return ids, nil
}

// VNPU asks what one of them has.
func (d Device) VNPU(id int) (VNPU, error) {
	v := C.VDevice{id: C.uint(id)}
	err := d.manage(resourceOf, unsafe.Pointer(&v), unsafe.Sizeof(v))
	name := unsafe.Slice((*byte)(unsafe.Pointer(&v.info.name)), len(v.info.name))
	return VNPU{ID: id, Template: cString(name), MemoryMiB: int64(v.info.computing.memory), AICores: float64(v.info.computing.aic)}, err
}

// Activity is what a vNPU does.
type Activity struct{ Percent, TotalKiB, FreeKiB int64 }

// Activity asks how busy one of them is.
func (d Device) Activity(id int) (Activity, error) {
	v := C.VDevice{id: C.uint(id)}
	err := d.manage(activityOf, unsafe.Pointer(&v), unsafe.Sizeof(v))
	c := v.info.computing
	return Activity{Percent: int64(c.busy), TotalKiB: int64(c.memoryTotal), FreeKiB: int64(c.memoryFree)}, err
}

// Create makes a vNPU of a template, and returns its number.
func (d Device) Create(template string) (int, error) {
	if len(template) >= templateSize {
		return 0, fmt.Errorf("the template's name %q is too long", template)
	}
	in, out := C.CreateIn{id: newID, group: newID}, C.CreateOut{}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&in.name)), templateSize), template)
	err := d.library.call("dcmi_create_vdevice", func(s unsafe.Pointer) C.int {
		return C.callIIPP(s, C.int(d.Card), C.int(d.Number), unsafe.Pointer(&in), unsafe.Pointer(&out))
	})
	return int(out.id), err
}

// Destroy ends a vNPU.
func (d Device) Destroy(id int) error {
	return d.library.call("dcmi_set_destroy_vdevice", func(s unsafe.Pointer) C.int {
		return C.callIII(s, C.int(d.Card), C.int(d.Number), C.uint(id))
	})
}
