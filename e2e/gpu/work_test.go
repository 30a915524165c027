// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
)

// workCommand makes the bundle a CUDA program:
//
//	work compute SECONDS    prints "started", then "rate LAUNCHES_PER_SECOND"
//	work allocate MIB       prints "allocated" or "out of memory"
//	work hold MIB           takes as much as it gets, prints "holds MIB free MIB total MIB",
//	                        and answers each line of its input with "intact" or "changed"
//	work spin 0             prints "started" and runs a kernel that does not end
//	work crash 0            does the same, and a second later breaks off with SIGSEGV
//	work fault ADDRESS      has a kernel write to the address: 1 is misaligned, 256 is not mapped
//	work state|lock|checkpoint|restore|unlock PID
//
// A program whose input is a pipe ends when that is closed, so that nothing outlives a bundle
// that was killed.
const workCommand = "work"

// ownProc tells a program in namespaces of its own to mount /proc as a container has it:
// without, CUDA fails with error 304.
const ownProc = "NOMAD_GPU_OWN_PROC"

func work(args []string) error {
	if os.Getenv(ownProc) != "" {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	if len(args) != 2 {
		return fmt.Errorf("work: want two arguments, got %q", args)
	}
	n, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	switch args[0] {
	case "state", "lock", "checkpoint", "restore", "unlock":
		return move(args[0], int(n))
	case "hold": // reads its input itself
	default:
		if piped() {
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				os.Exit(3)
			}()
		}
	}
	c, err := cuda.Open(0)
	if err != nil {
		return err
	}
	switch args[0] {
	case "compute":
		return compute(c, time.Duration(n)*time.Second)
	case "allocate":
		return allocate(c, n)
	case "hold":
		return hold(c, n)
	case "spin":
		return spin(c)
	case "crash":
		time.AfterFunc(time.Second, func() { _ = unix.Kill(os.Getpid(), unix.SIGSEGV) })
		return spin(c)
	case "fault":
		return fault(c, n)
	}
	return fmt.Errorf("work: %q is not valid (compute, allocate, hold, spin, crash, fault, state, lock, checkpoint, restore, unlock)", args[0])
}

// piped reports whether another program holds the other end of the input. A container has none,
// and its program runs until it is ended.
func piped() bool {
	info, err := os.Stdin.Stat()
	return err == nil && info.Mode()&os.ModeNamedPipe != 0
}

// move takes one step of a process's way to the host and back, by the calls with which
// the plugin suspends tasks.
func move(step string, pid int) error {
	c, err := cuda.OpenCheckpoints()
	if err != nil {
		return err
	}
	switch step {
	case "state":
		state, err := c.State(pid)
		fmt.Printf("state %q, error %v\n", state, err)
		return nil
	case "lock":
		return c.Lock(pid, 10*time.Second)
	case "checkpoint":
		return c.Checkpoint(pid)
	case "restore":
		return c.Restore(pid)
	}
	return c.Unlock(pid)
}

func allocate(c *cuda.Context, mib uint64) error {
	_, err := c.Alloc(mib << 20)
	switch {
	case err == nil:
		fmt.Println("allocated")
		return nil
	case full(err):
		fmt.Println("out of memory")
		return nil
	}
	return err
}

func full(err error) bool {
	var failure *cuda.Error
	return errors.As(err, &failure) && failure.Code == cuda.OutOfMemory
}

// chunkMiB is how much hold takes at a time, with a pattern in its first words.
const (
	chunkMiB = 64
	pattern  = 0x6e6f6d61
	sample   = 1024
)

func hold(c *cuda.Context, mib uint64) error {
	var chunks []uint64
	for uint64(len(chunks))*chunkMiB < mib {
		p, err := c.Alloc(chunkMiB << 20)
		if full(err) {
			break
		}
		if err != nil {
			return err
		}
		if err := c.Fill(p, pattern, sample); err != nil {
			return err
		}
		chunks = append(chunks, p)
	}
	free, total, err := c.Memory()
	if err != nil {
		return err
	}
	fmt.Printf("holds %d free %d total %d\n", len(chunks)*chunkMiB, free>>20, total>>20)
	for !piped() {
		time.Sleep(time.Minute)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := check(c, chunks)
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

func check(c *cuda.Context, chunks []uint64) (string, error) {
	for _, p := range chunks {
		words, err := c.Read(p, sample)
		if err != nil {
			return "", err
		}
		for _, w := range words {
			if w != pattern {
				return "changed", nil
			}
		}
	}
	return "intact", nil
}

// The kernel fills any GPU: more blocks than it has multiprocessors, many times.
const (
	blocks = 4096
	rounds = 20000
)

func compute(c *cuda.Context, last time.Duration) error {
	out, err := c.Alloc(4 * blocks * cuda.Threads)
	if err != nil {
		return err
	}
	if err := c.Compute(out, blocks, rounds); err != nil { // compiles
		return err
	}
	fmt.Println("started")
	launches, began := 0, time.Now()
	for time.Since(began) < last {
		if err := c.Compute(out, blocks, rounds); err != nil {
			return err
		}
		launches++
	}
	fmt.Printf("rate %.3f\n", float64(launches)/time.Since(began).Seconds())
	return nil
}

// spin runs a kernel that takes longer than any test.
func spin(c *cuda.Context) error {
	out, err := c.Alloc(4 * blocks * cuda.Threads)
	if err != nil {
		return err
	}
	if err := c.Compute(out, blocks, rounds); err != nil { // compiles
		return err
	}
	fmt.Println("started")
	for {
		if err := c.Compute(out, blocks, math.MaxUint32); err != nil {
			return err
		}
	}
}

func fault(c *cuda.Context, address uint64) error {
	fmt.Println("started")
	return c.Compute(address, 1, 1)
}
