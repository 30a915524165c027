// SPDX-License-Identifier: MPL-2.0

package dcmi

// #include "dcmi.h"
// void nomadGPUFault(Event *event);
import "C"

import (
	"sync"
	"unsafe"
)

// Change is how a fault changed.
type Change uint8

// The changes that the driver tells of. One that has Passed does not stand.
const (
	Recovered Change = 0
	Began     Change = 1
	Passed    Change = 2
)

// Fault is the driver's message about one.
type Fault struct {
	// Logical is the device's number, as of [Device.Numbers].
	Logical int
	Code    uint32
	Grade   Health
	Change  Change
	Text    string
}

// listeners hear every message: the driver calls one function, which is told nothing of
// whom it is for.
var listeners = struct {
	sync.Mutex
	all  map[int]func(Fault)
	next int
}{all: map[int]func(Fault){}}

// Listen has a function called with every fault of the devices that were subscribed to,
// from a thread of the driver's: it must not block. The result ends it.
func Listen(hear func(Fault)) (stop func()) {
	listeners.Lock()
	defer listeners.Unlock()
	id := listeners.next
	listeners.next++
	listeners.all[id] = hear
	return func() {
		listeners.Lock()
		defer listeners.Unlock()
		delete(listeners.all, id)
	}
}

//export nomadGPUFault
func nomadGPUFault(event *C.Event) {
	if event == nil || event._type != 0 {
		return
	}
	// Of the union only the first member is used; its fields are copied before the call
	// ends.
	f := faultOf(event)
	listeners.Lock()
	defer listeners.Unlock()
	for _, hear := range listeners.all {
		hear(f)
	}
}

func faultOf(event *C.Event) Fault {
	f := C.faultOf(event)
	return Fault{Logical: int(f.device), Code: uint32(f.code), Grade: Health(f.severity), Change: Change(f.assertion),
		Text: goText(unsafe.Slice((*C.uchar)(unsafe.Pointer(&f.name[0])), len(f.name)))}
}

// Subscribe has the driver tell of the device's faults, to what [Listen] was given, for as
// long as the process lives.
func (d Device) Subscribe() error {
	return d.library.call("dcmi_subscribe_fault_event", func(s unsafe.Pointer) C.int {
		return C.subscribe(s, C.int(d.Card), C.int(d.Number), (*[0]byte)(C.nomadGPUFault))
	})
}
