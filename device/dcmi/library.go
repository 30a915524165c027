// SPDX-License-Identifier: MPL-2.0

package dcmi

/*
#cgo LDFLAGS: -ldl
#include "dcmi.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// ErrUnavailable means that the library could not be opened.
var ErrUnavailable = errors.New("libdcmi.so, of Huawei's driver, cannot be opened")

// ErrUnsupported means that the library or the device does not know the question.
var ErrUnsupported = errors.New("not supported")

// Error is a failure of DCMI.
type Error struct {
	Call string
	Code int
}

// Codes of DCMI's that mean something here.
const (
	codeInvalidParameter = -8001
	codeInvalidDevice    = -8007
	codeNoDevice         = -8008
	codeNotReady         = -8012
	codeNotSupported     = -8255
)

// meanings are what the codes say, in DCMI's own words.
var meanings = map[int]string{
	codeInvalidParameter: "invalid parameter", -8002: "operation not permitted", -8003: "memory operation failed", -8005: "internal error",
	-8006: "time out", codeInvalidDevice: "invalid device ID", codeNoDevice: "device does not exist", -8009: "ioctl failed", -8010: "message not sent",
	-8011: "message not received", codeNotReady: "not ready", -8013: "not supported in containers", -8014: "file operation failed",
	-8015: "reset failed", -8017: "being upgraded", -8020: "resource occupied", codeNotSupported: "not supported",
}

// Error names the call and the code.
func (e *Error) Error() string {
	if text := meanings[e.Code]; text != "" {
		return fmt.Sprintf("%s: %s (%d)", e.Call, text, e.Code)
	}
	return fmt.Sprintf("%s: error %d", e.Call, e.Code)
}

// Is reports whether the failure is an ErrUnsupported.
func (e *Error) Is(target error) bool { return target == ErrUnsupported && e.Code == codeNotSupported }

// Gone reports whether an error says that a device is not there.
func Gone(err error) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains([]int{codeInvalidParameter, codeInvalidDevice, codeNoDevice}, e.Code)
}

// Library is an opened libdcmi.so. Its methods may be called from many goroutines; while
// Init runs, no other may be.
type Library struct {
	handle unsafe.Pointer
	mu     sync.Mutex
	found  map[string]unsafe.Pointer
}

// Open opens the library at a path, or by a name that the dynamic linker finds. It stays
// loaded for the life of the process.
func Open(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	C.dlerror()
	handle := C.openLibrary(name)
	if handle == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, C.GoString(C.dlerror()))
	}
	return &Library{handle: handle, found: map[string]unsafe.Pointer{}}, nil
}

// call runs one of the library's functions.
func (l *Library) call(name string, run func(unsafe.Pointer) C.int) error {
	l.mu.Lock()
	symbol, asked := l.found[name]
	if !asked {
		text := C.CString(name)
		symbol = C.dlsym(l.handle, text)
		C.free(unsafe.Pointer(text))
		l.found[name] = symbol
	}
	l.mu.Unlock()
	if symbol == nil {
		return fmt.Errorf("the library has no %s: %w", name, ErrUnsupported)
	}
	if code := run(symbol); code != 0 {
		return &Error{Call: name, Code: int(code)}
	}
	return nil
}

// Init finds the machine's cards. Later changes are seen after another Init.
func (l *Library) Init() error {
	return l.call("dcmi_init", func(s unsafe.Pointer) C.int { return C.call(s) })
}

// DriverVersion is the version of the driver: "24.1.rc3".
func (l *Library) DriverVersion() (string, error) {
	var text [256]byte
	err := l.call("dcmi_get_driver_version", func(s unsafe.Pointer) C.int { return C.callPI(s, unsafe.Pointer(&text), C.int(len(text))) })
	return cString(text[:]), err
}

// maxCards is how many cards a machine can have.
const maxCards = 64

// Devices lists the devices of all cards, as the last Init found them.
func (l *Library) Devices() ([]Device, error) {
	var count C.int
	var cards [maxCards]C.int
	err := l.call("dcmi_get_card_list", func(s unsafe.Pointer) C.int {
		return C.callPPI(s, unsafe.Pointer(&count), unsafe.Pointer(&cards), maxCards)
	})
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, card := range cards[:min(max(count, 0), maxCards)] {
		var devices C.int
		if err := l.call("dcmi_get_device_num_in_card", func(s unsafe.Pointer) C.int { return C.callIP(s, card, unsafe.Pointer(&devices)) }); err != nil {
			return nil, err
		}
		for n := range min(devices, maxCards) {
			all = append(all, Device{library: l, Card: int(card), Number: int(n)})
		}
	}
	return all, nil
}

// cString is the text before the first zero.
func cString(text []byte) string {
	if end := slices.Index(text, 0); end >= 0 {
		text = text[:end]
	}
	return string(text)
}
