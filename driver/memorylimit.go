package driver

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// limiterTimeout is how long the device plugin's program may take to set a limit.
const limiterTimeout = 20 * time.Second

// limitMemory has NVIDIA's driver hold the task's control group to its GPU memory. It
// is called when the group is there and nothing of the task has run.
func (p *startPlan) limitMemory(ctx context.Context) error {
	for _, l := range p.share.MemoryLimits {
		group, err := cgroups.Dir(p.record.Lease.Cgroup)
		if err != nil {
			return &spec.NotReadyError{UUID: l.UUID, Reason: err.Error()}
		}
		if err := runLimiter(ctx, l.Command, l.UUID, group, strconv.FormatInt(l.GuaranteeMiB, 10), strconv.FormatInt(l.LimitMiB, 10)); err != nil {
			return &spec.NotReadyError{UUID: l.UUID, Reason: "the task could not be held to its memory: " + err.Error()}
		}
	}
	return nil
}

// releaseMemory takes guarantees back before a control group is removed: of one that is
// gone they would stay added to those of the groups above.
func (d *Driver) releaseMemory(ctx context.Context, n environment, c *runtime.Container) {
	r, err := record.Of(c)
	if err != nil {
		return
	}
	for _, h := range r.Lease.Holdings {
		state, err := n.state.GPU(h.UUID)
		if err != nil || state.Limiter == nil || h.MemoryMiB == 0 || len(h.Slices) == 0 || len(h.Slices) == state.Slices {
			continue
		}
		group, err := cgroups.Dir(cgroups.Of(r.Lease))
		if err != nil {
			continue // it is gone
		}
		if err := runLimiter(ctx, state.Limiter.Command, h.UUID, group, "0", strconv.FormatInt(h.MostMiB(), 10)); err != nil {
			d.logger.Warn("the memory that a task was guaranteed stays reserved in the control groups above its own", "container", c.ID, "gpu", h.UUID, "error", err)
		}
	}
}

func runLimiter(ctx context.Context, command []string, args ...string) error {
	if len(command) == 0 {
		return errors.New("the device plugin names no program for that")
	}
	ctx, cancel := context.WithTimeout(ctx, limiterTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], slices.Concat(command[1:], args)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("%s does not answer", command[0])
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
