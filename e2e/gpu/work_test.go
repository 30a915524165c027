package gpu

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
)

// workCommand makes the bundle a CUDA program:
//
//	work compute SECONDS    prints "rate LAUNCHES_PER_SECOND"
//	work allocate MIB       prints "allocated" or "out of memory"
const workCommand = "work"

func work(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("work: want two arguments, got %q", args)
	}
	n, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	c, err := cuda.Open(0)
	if err != nil {
		return err
	}
	if args[0] == "allocate" {
		return allocate(c, n)
	}
	return compute(c, time.Duration(n)*time.Second)
}

func allocate(c *cuda.Context, mib uint64) error {
	_, err := c.Alloc(mib << 20)
	var failure *cuda.Error
	switch {
	case err == nil:
		fmt.Println("allocated")
		return nil
	case errors.As(err, &failure) && failure.Code == cuda.OutOfMemory:
		fmt.Println("out of memory")
		return nil
	}
	return err
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
