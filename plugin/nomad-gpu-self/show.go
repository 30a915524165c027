// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// show prints an answer for people.
func show(out io.Writer, a gpu.SelfAnswer, now time.Time) error {
	var text strings.Builder
	if a.Message != "" {
		fmt.Fprintln(&text, a.Message)
	}
	if a.Status != nil {
		for _, g := range a.Status.GPUs {
			showGPU(&text, g, now)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func showGPU(text *strings.Builder, g gpu.SelfGPU, now time.Time) {
	line := func(key, format string, args ...any) {
		fmt.Fprintf(text, "  %-10s %s\n", key, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(text, "GPU %s\n", strings.TrimSpace(g.UUID+" "+g.Model))
	line("share", "%s", share(g))
	if g.Use == nil {
		line("use", "not measured yet")
	} else {
		line("use", "%s of memory, %s, %s, %s ago", gpu.FormatMemory(g.Use.MemoryMiB), compute(g.Use.Milli), count(g.Use.Processes, "process", "processes"), now.Sub(g.Use.MeasuredAt).Round(time.Second))
	}
	if !g.Whole {
		n := g.Neighbors
		line("neighbors", "%s, %s of memory, %s, %s guaranteed", count(n.Tasks, "task", "tasks"), gpu.FormatMemory(n.MemoryMiB), compute(n.Milli), gpu.FormatMilli(n.GuaranteeMilli))
	}
	if s := g.Seat; s != nil {
		line("seat", "%s since %s, priority %d", s.State, s.Since.UTC().Format(time.RFC3339), s.Priority)
		line("waiting", "%s", waiting(s))
	}
}

func share(g gpu.SelfGPU) string {
	if g.Whole && g.Share.MemoryMiB == 0 {
		return "the whole GPU, " + gpu.FormatMemory(g.DeviceMiB)
	}
	parts := []string{"memory not limited"}
	if g.Share.MemoryMiB > 0 {
		parts[0] = gpu.FormatMemory(g.Share.MemoryMiB) + " of memory"
	}
	if g.Share.MemoryLimitMiB > g.Share.MemoryMiB {
		parts[0] += ", up to " + gpu.FormatMemory(g.Share.MemoryLimitMiB) + " while others leave it"
	}
	if g.Share.GuaranteeMilli > 0 {
		parts = append(parts, "compute "+gpu.FormatMilli(g.Share.GuaranteeMilli))
	}
	if g.Share.LimitMilli > 0 {
		parts = append(parts, "at most "+gpu.FormatMilli(g.Share.LimitMilli))
	}
	return strings.Join(parts, ", ")
}

func count(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func compute(milli int64) string {
	if milli < 0 {
		return "compute not measured"
	}
	return "compute " + gpu.FormatMilli(milli)
}

func waiting(s *gpu.SelfSeat) string {
	parts := []string{count(s.Waiting, "other task", "other tasks")}
	if !s.NextTurn.IsZero() {
		parts = append(parts, fmt.Sprintf("%d of them before this one; it comes before all from %s on", s.Ahead, s.NextTurn.UTC().Format(time.RFC3339)))
	}
	if s.Idle {
		parts = append(parts, "it does not want the GPU back now")
	}
	if s.Asked != "" {
		parts = append(parts, fmt.Sprintf("it has asked for %s", s.Asked))
	}
	if s.Fixed {
		parts = append(parts, "it cannot be suspended as it is")
	}
	return strings.Join(parts, "; ")
}
