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
)

// ProbeCommand is the first argument with which a binary runs itself to probe;
// its main must then call Check.
const ProbeCommand = "cuda-probe"

// Probe tries a GPU or MIG instance in a process of its own: it makes a
// context, fills memory, computes and compares. self is the binary that is run,
// libraryPath where it finds the driver if not in the usual places.
func Probe(self, uuid, libraryPath string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, ProbeCommand)
	// Without a daemon in the pipe directory CUDA runs without MPS, which is
	// meant here: the GPU is tried, and no daemon.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=" + uuid, "CUDA_MPS_PIPE_DIRECTORY=/nonexistent", "CUDA_CACHE_DISABLE=1"}
	if libraryPath != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraryPath)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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

// Check is the probe itself, in its own process.
func Check() error {
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
