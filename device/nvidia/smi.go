// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SMI does with nvidia-smi what NVML has no call for: time slices and resets.
type SMI struct {
	// Program is nvidia-smi, by path or by name.
	Program string
}

// levels are the lengths in order of nvidia-smi's numbers.
var levels = []string{"default", "short", "medium", "long"}

const (
	smiTimeout   = 10 * time.Second
	resetTimeout = 2 * time.Minute
)

// Timeslice reads the length in force.
func (s SMI) Timeslice(uuid string) (string, error) {
	out, err := s.run("compute-policy", "-i", uuid, "-l")
	if err != nil {
		return "", err
	}
	return parseTimeslice(out)
}

// SetTimeslice sets the length: default, short, medium or long.
func (s SMI) SetTimeslice(uuid, level string) error {
	number := slices.Index(levels, level)
	if number < 0 {
		return fmt.Errorf("time-slice length %q is not one of %s", level, strings.Join(levels, ", "))
	}
	_, err := s.run("compute-policy", "-i", uuid, "--set-timeslice", strconv.Itoa(number))
	return err
}

// Reset resets a GPU. It fails while any program has it open, and on GPUs that can
// only be reset together with their NVLink neighbors.
func (s SMI) Reset(uuid string) error {
	_, err := s.runFor(resetTimeout, "--gpu-reset", "-i", uuid)
	return err
}

func (s SMI) run(args ...string) (string, error) { return s.runFor(smiTimeout, args...) }

func (s SMI) runFor(timeout time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Program, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run nvidia-smi %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// parseTimeslice finds the length in nvidia-smi's table of compute policies.
func parseTimeslice(out string) (string, error) {
	for line := range strings.Lines(out) {
		lower := strings.ToLower(line)
		if !strings.Contains(lower, "timeslice") {
			continue
		}
		for _, level := range levels {
			if strings.Contains(lower, level) {
				return level, nil
			}
		}
	}
	return "", fmt.Errorf("nvidia-smi names no time-slice length: %q", strings.TrimSpace(out))
}
