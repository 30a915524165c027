// SPDX-License-Identifier: MPL-2.0

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
)

// limiterTimeout is how long the device plugin's program may take to set a limit.
const limiterTimeout = 20 * time.Second

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
