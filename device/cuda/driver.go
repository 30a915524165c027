// SPDX-License-Identifier: MPL-2.0

package cuda

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Only the used part. The types are those of cuda.h on 64-bit machines.

static void *lib;

static const char *load(void) {
	if (lib == NULL) lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	return lib == NULL ? dlerror() : NULL;
}
static void *sym(const char *name) { return dlsym(lib, name); }

static int init(void *f) { return ((int (*)(unsigned int))f)(0); }
static int device(void *f, int *d, int n) { return ((int (*)(int *, int))f)(d, n); }
static int retain(void *f, void **c, int d) { return ((int (*)(void **, int))f)(c, d); }
static int current(void *f, void *c) { return ((int (*)(void *))f)(c); }
static int alloc(void *f, uint64_t *p, size_t n) { return ((int (*)(uint64_t *, size_t))f)(p, n); }
static int release(void *f, uint64_t p) { return ((int (*)(uint64_t))f)(p); }
static int meminfo(void *f, size_t *a, size_t *b) { return ((int (*)(size_t *, size_t *))f)(a, b); }
static int set32(void *f, uint64_t p, unsigned int v, size_t n) { return ((int (*)(uint64_t, unsigned int, size_t))f)(p, v, n); }
static int tohost(void *f, void *h, uint64_t p, size_t n) { return ((int (*)(void *, uint64_t, size_t))f)(h, p, n); }
static int module(void *f, void **m, const char *text) { return ((int (*)(void **, const void *))f)(m, text); }
static int function(void *f, void **k, void *m, const char *name) { return ((int (*)(void **, void *, const char *))f)(k, m, name); }
static int sync_(void *f) { return ((int (*)(void))f)(); }
static int errname(void *f, int code, const char **s) { return ((int (*)(int, const char **))f)(code, s); }
static int launch(void *f, void *k, unsigned int blocks, unsigned int threads, uint64_t out, uint32_t rounds) {
	void *args[] = {&out, &rounds};
	return ((int (*)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		unsigned int, void *, void **, void **))f)(k, blocks, 1, 1, threads, 1, 1, 0, NULL, args, NULL);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// ErrUnavailable means that there is no CUDA driver library.
var ErrUnavailable = errors.New("CUDA is not available")

// Error is a failure of CUDA, by its own name.
type Error struct {
	Call string
	Code int
	Name string
}

const (
	// OutOfMemory is the code with which an allocation is refused.
	OutOfMemory = 2
	// Unavailable is the code of a GPU that lets one program in and has one.
	Unavailable = 46
)

// Error names the call and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// Context is the primary context of one device. It belongs to the goroutine
// that opened it, which is locked to its thread.
type Context struct{ kernel unsafe.Pointer }

// Open takes the n-th of the devices that CUDA_VISIBLE_DEVICES shows.
func Open(n int) (*Context, error) {
	if err := loadLibrary(); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	var device C.int
	var context unsafe.Pointer
	if err := first(
		initialize,
		func() error {
			return with("cuDeviceGet", func(f unsafe.Pointer) C.int { return C.device(f, &device, C.int(n)) })
		},
		func() error {
			return with("cuDevicePrimaryCtxRetain", func(f unsafe.Pointer) C.int { return C.retain(f, &context, device) })
		},
		func() error {
			return with("cuCtxSetCurrent", func(f unsafe.Pointer) C.int { return C.current(f, context) })
		},
	); err != nil {
		return nil, err
	}
	return &Context{}, nil
}

func loadLibrary() error {
	if message := C.load(); message != nil {
		return fmt.Errorf("%w: %s", ErrUnavailable, C.GoString(message))
	}
	return nil
}

func initialize() error {
	return with("cuInit", func(f unsafe.Pointer) C.int { return C.init(f) })
}

// Alloc takes bytes of device memory.
func (c *Context) Alloc(bytes uint64) (uint64, error) {
	var p C.uint64_t
	err := with("cuMemAlloc_v2", func(f unsafe.Pointer) C.int { return C.alloc(f, &p, C.size_t(bytes)) })
	return uint64(p), err
}

// Free gives memory back.
func (c *Context) Free(p uint64) error {
	return with("cuMemFree_v2", func(f unsafe.Pointer) C.int { return C.release(f, C.uint64_t(p)) })
}

// Memory is what the program sees as free and as total, in bytes.
func (c *Context) Memory() (free, total uint64, err error) {
	var a, b C.size_t
	err = with("cuMemGetInfo_v2", func(f unsafe.Pointer) C.int { return C.meminfo(f, &a, &b) })
	return uint64(a), uint64(b), err
}

// Fill writes a pattern to count 32-bit words.
func (c *Context) Fill(p uint64, pattern uint32, count int) error {
	return with("cuMemsetD32_v2", func(f unsafe.Pointer) C.int {
		return C.set32(f, C.uint64_t(p), C.uint(pattern), C.size_t(count))
	})
}

// Read copies count 32-bit words to the host.
func (c *Context) Read(p uint64, count int) ([]uint32, error) {
	words := make([]uint32, count)
	err := with("cuMemcpyDtoH_v2", func(f unsafe.Pointer) C.int {
		return C.tohost(f, unsafe.Pointer(&words[0]), C.uint64_t(p), C.size_t(4*count))
	})
	return words, err
}

// Compute runs the kernel with blocks of 256 threads, each for a number of
// rounds, and waits for it. out holds one word per thread.
func (c *Context) Compute(out uint64, blocks, rounds uint32) error {
	if c.kernel == nil {
		if err := c.compile(); err != nil {
			return err
		}
	}
	if err := with("cuLaunchKernel", func(f unsafe.Pointer) C.int {
		return C.launch(f, c.kernel, C.uint(blocks), Threads, C.uint64_t(out), C.uint32_t(rounds))
	}); err != nil {
		return err
	}
	return with("cuCtxSynchronize", func(f unsafe.Pointer) C.int { return C.sync_(f) })
}

func (c *Context) compile() error {
	text, name := C.CString(ptx), C.CString("work")
	defer freeString(text)
	defer freeString(name)
	var module unsafe.Pointer
	if err := with("cuModuleLoadData", func(f unsafe.Pointer) C.int { return C.module(f, &module, text) }); err != nil {
		return err
	}
	return with("cuModuleGetFunction", func(f unsafe.Pointer) C.int { return C.function(f, &c.kernel, module, name) })
}

func first(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// with looks a function of the library up and calls it.
func with(name string, call func(unsafe.Pointer) C.int) error {
	f, err := symbol(name)
	if err != nil {
		return err
	}
	if code := call(f); code != 0 {
		return &Error{Call: name, Code: int(code), Name: errorName(code)}
	}
	return nil
}

func symbol(name string) (unsafe.Pointer, error) {
	s := C.CString(name)
	defer freeString(s)
	if f := C.sym(s); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("%w: libcuda.so.1 has no %s", ErrUnavailable, name)
}

func errorName(code C.int) string {
	var name *C.char
	f, err := symbol("cuGetErrorName")
	if err != nil || C.errname(f, code, &name) != 0 {
		return "unknown"
	}
	return C.GoString(name)
}

func freeString(s *C.char) { C.free(unsafe.Pointer(s)) }
