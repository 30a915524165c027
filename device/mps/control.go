package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// control starts, finds and ends one daemon, and asks it.
type control struct {
	mpsctl.Control
	self      string
	multiUser bool
	hostShm   bool
	shmMiB    int64
	uuid      string
	dirs      dirs
	// startScope moves processes to a systemd scope; nil without systemd.
	startScope func(context.Context, scope) error
}

// multiUserFlags are the spellings of one option: driver branches know one of
// them or none, and refuse or ignore the others.
var multiUserFlags = []string{"-multiuser-server", "--multiuser-server", "-M"}

// start runs the daemon. The daemon sees its own directory as /dev/shm, which
// clients share and whose size is limited (see limitShm), in a mount namespace of
// its own: the plugin runs itself again there to mount it (see Exec). Or it
// shares the host's with tasks that do.
func (c control) start(ctx context.Context) (process, error) {
	attempts := [][]string{{"-d"}}
	if c.multiUser {
		attempts = nil
		for _, flag := range multiUserFlags {
			attempts = append(attempts, []string{"-d", flag})
		}
		// Drivers that know none of them serve one user at a time.
		attempts = append(attempts, []string{"-d"})
	}
	if err := c.dirs.clearPipes(); err != nil {
		return process{}, err
	}
	var problem error
	for _, args := range attempts {
		problem = c.launch(ctx, args)
		if errors.Is(problem, mpsctl.ErrTimeout) || ctx.Err() != nil {
			break
		}
		// The exit status alone says little: a branch that does not know an option
		// becomes a client and may be content.
		found, err := c.find()
		if err == nil {
			return found, nil
		}
		if problem == nil {
			problem = fmt.Errorf("it did not stay: %w", err)
		}
	}
	return process{}, fmt.Errorf("start MPS control daemon: %w", problem)
}

func (c control) launch(ctx context.Context, args []string) error {
	attr, program := &syscall.SysProcAttr{Setsid: true}, c.Program
	if !c.hostShm {
		args = append([]string{ExecCommand, c.dirs.shm, c.Program}, args...)
		program, attr.Unshareflags = c.self, syscall.CLONE_NEWNS
	}
	_, err := c.Run(ctx, program, args, "", attr)
	return err
}

// end stops the daemon, by force if it does not listen, with all that was ever
// started for its directories, and removes them.
func (c control) end(log hclog.Logger) {
	if p, err := c.find(); err == nil {
		log.Info("stopping MPS control daemon", "device", c.uuid, "pid", p.PID)
		_, _ = c.Ask(context.Background(), "quit -t 1")
	}
	if err := c.endLeftovers(log); err != nil {
		log.Warn("cannot end MPS processes", "device", c.uuid, "error", err)
	}
	if err := c.dirs.unmountShm(); err != nil {
		log.Warn("cannot give shared memory back", "device", c.uuid, "error", err)
		return // removing would only empty it
	}
	if err := os.RemoveAll(c.dirs.base); err != nil {
		log.Warn("cannot remove MPS directories", "device", c.uuid, "error", err)
	}
}
