// What is used of DCMI's interface: the forms of its functions.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "structures.h"

static inline void *openLibrary(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

// Named after what they take: i is an int, p a pointer.
#define FORM(name, declared, types, values) static inline int name declared { return ((int(*) types)s)values; }
FORM(call, (void *s), (void), ())
FORM(callPI, (void *s, void *a, int n), (void *, int), (a, n))
FORM(callIP, (void *s, int i, void *a), (int, void *), (i, a))
FORM(callPPI, (void *s, void *a, void *b, int n), (void *, void *, int), (a, b, n))
FORM(callPII, (void *s, void *a, int i, int j), (void *, int, int), (a, i, j))
FORM(callIIP, (void *s, int i, int j, void *a), (int, int, void *), (i, j, a))
FORM(callIII, (void *s, int i, int j, unsigned int k), (int, int, unsigned int), (i, j, k))
FORM(callIIPP, (void *s, int i, int j, void *a, void *b), (int, int, void *, void *), (i, j, a, b))
FORM(callIIIP, (void *s, int i, int j, int k, void *a), (int, int, int, void *), (i, j, k, a))
FORM(callIIPPI, (void *s, int i, int j, void *a, void *b, int n), (int, int, void *, void *, int), (i, j, a, b, n))
FORM(callIIIPI, (void *s, int i, int j, unsigned int k, void *a, int n), (int, int, unsigned int, void *, int), (i, j, k, a, n))
FORM(callIIIIP, (void *s, int i, int j, int k, int l, void *a), (int, int, int, int, void *), (i, j, k, l, a))
FORM(callIIIIPP, (void *s, int i, int j, int k, int l, void *a, void *b), (int, int, int, int, void *, void *), (i, j, k, l, a, b))

// subscribe asks for all messages about a device's faults.
static inline int subscribe(void *s, int card, int number, void (*handler)(Event *)) {
	Filter all;
	memset(&all, 0, sizeof all);
	return ((int(*)(int, int, Filter, void (*)(Event *)))s)(card, number, all, handler);
}

static inline const Fault *faultOf(const Event *event) { return &event->of.fault; }
