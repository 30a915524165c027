// SPDX-License-Identifier: MPL-2.0

package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// ProbeCommand is the first argument with which a binary runs itself to probe;
// its main must then call Check.
const ProbeCommand = "cuda-probe"

// Target is what a probe tries, and how it is reached.
type Target struct {
	// UUID is a GPU or MIG instance.
	UUID string
	// LibraryPath is where the program finds the driver, if not in the usual places.
	LibraryPath string
	// PipeDir and LogDir are those of the device's MPS daemon; empty without one:
	// CUDA then runs without MPS.
	PipeDir, LogDir string
	// Before is put before the program: what gives it the daemon's shared memory.
	Before []string
}

// The limits of a probe under MPS: it takes next to nothing from its neighbors.
const (
	probeMemoryMiB    = 512
	probeComputeMilli = 50
)

// Probe tries a device in a process of its own: it makes a context, fills memory,
// computes and compares. self is the binary that is run.
func Probe(self string, target Target, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	args := append(append([]string{}, target.Before...), self, ProbeCommand)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = target.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if len(target.Before) > 0 {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	// A process that hangs in the driver does not die of a signal: it is left
	// to itself.
	abandon := time.NewTimer(timeout + 2*time.Second)
	defer abandon.Stop()
	select {
	case err := <-ended:
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("a CUDA program fails: %s", strings.TrimSpace(out.String()))
		}
		if err == nil {
			return nil
		}
	case <-abandon.C:
	}
	return errors.New("a CUDA program does not come back")
}

func (t Target) environment() []string {
	env := map[string]string{"PATH": os.Getenv("PATH"), gpu.EnvCUDAVisible: t.UUID, "CUDA_CACHE_DISABLE": "1",
		// Without a daemon in the pipe directory CUDA runs without MPS.
		gpu.EnvMPSPipeDir: "/nonexistent"}
	if t.PipeDir != "" {
		for key, value := range gpu.MPSEnv(t.PipeDir, t.LogDir, gpu.Share{MemoryMiB: probeMemoryMiB, LimitMilli: probeComputeMilli}) {
			env[key] = value
		}
	}
	if t.LibraryPath != "" {
		env["LD_LIBRARY_PATH"] = t.LibraryPath
	}
	list := make([]string, 0, len(env))
	for key, value := range env {
		list = append(list, key+"="+value)
	}
	return list
}

// alive reports whether an error shows that the GPU works: it has no room for one
// more program, or lets none in beside the one that it has.
func alive(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && (refused.Code == OutOfMemory || refused.Code == Unavailable)
}

// Check is the probe itself, in its own process.
func Check() error {
	if err := check(); err != nil && !alive(err) {
		return err
	}
	return nil
}

func check() error {
	const blocks, rounds, words = 64, 1000, 64 * Threads
	c, err := Open(0)
	if err != nil {
		return err
	}
	p, err := c.Alloc(4 * words)
	if err != nil {
		return err
	}
	if err := c.Fill(p, 0xdeadbeef, words); err != nil {
		return err
	}
	if err := c.Compute(p, blocks, rounds); err != nil {
		return err
	}
	got, err := c.Read(p, words)
	if err != nil {
		return err
	}
	for thread, word := range got {
		if want := expected(uint32(thread), rounds); word != want {
			return fmt.Errorf("thread %d computed %#x, not %#x", thread, word, want)
		}
	}
	return c.Free(p)
}
