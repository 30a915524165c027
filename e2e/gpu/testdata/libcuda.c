// A stand-in for libcuda.so.1, for the bundle's own test: it counts memory against the
// limit of an MPS client, takes as long for a kernel as its part of the threads
// says, fails as a GPU does after a write to nowhere, and keeps what is written.
// It has no GPU: what is measured with it says nothing about one.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOTAL (16ULL << 30)
enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, MISALIGNED = 716 };

static uint64_t used, next = 1ULL << 32;
static int sticky;
static struct { uint64_t at; unsigned int word; } filled[65536];
static int fills;

static uint64_t limit(void) {
	const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	return text == NULL || strncmp(text, "0=", 2) != 0 ? TOTAL : strtoull(text + 2, NULL, 10) << 20;
}

static int percent(void) {
	const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	return text == NULL ? 100 : atoi(text);
}

int cuInit(unsigned int flags) { return 0; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &used; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }

int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
	if (sticky) return sticky;
	if (used + bytes > limit()) return OUT_OF_MEMORY;
	used += bytes, *p = next, next += bytes;
	return 0;
}
int cuMemFree_v2(uint64_t p) { return sticky; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = limit(), *free = limit() - used; return sticky; }

int cuMemsetD32_v2(uint64_t p, unsigned int word, size_t count) {
	filled[fills].at = p, filled[fills++].word = word;
	return sticky;
}
int cuMemcpyDtoH_v2(void *to, uint64_t p, size_t bytes) {
	for (int i = 0; i < fills; i++)
		for (size_t n = 0; filled[i].at == p && n < bytes / 4; n++) ((uint32_t *)to)[n] = filled[i].word;
	return sticky;
}

int cuModuleLoadData(void **module, const void *text) { *module = &used; return 0; }
int cuModuleGetFunction(void **f, void *module, const char *name) { *f = &used; return 0; }

int cuLaunchKernel(void *f, unsigned int x, unsigned int y, unsigned int z, unsigned int tx, unsigned int ty, unsigned int tz,
	unsigned int shared, void *stream, void **args, void **extra) {
	uint64_t out = *(uint64_t *)args[0];
	if (sticky) return sticky;
	if (out % 4 != 0) sticky = MISALIGNED;
	else if (out < 1ULL << 32) sticky = ILLEGAL_ADDRESS;
	if (*(uint32_t *)args[1] == UINT32_MAX) pause();
	usleep(100000 / percent());
	return 0;
}
int cuCtxSynchronize(void) { return sticky; }

int cuGetErrorName(int code, const char **name) {
	*name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_MISALIGNED_ADDRESS";
	return 0;
}

int cuCheckpointProcessGetState(int pid, int *state) { *state = 0; return 0; }
int cuCheckpointProcessLock(int pid, void *args) { return 0; }
int cuCheckpointProcessCheckpoint(int pid, void *args) { return 0; }
int cuCheckpointProcessRestore(int pid, void *args) { return 0; }
int cuCheckpointProcessUnlock(int pid, void *args) { return 0; }
