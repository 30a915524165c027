// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// control starts, finds and ends one daemon, and asks it.
type control struct {
	mpsctl.Control
	self, libraryPath string

	multiUser bool
	// static daemons divide the multiprocessors into partitions; partitioned says that
	// the one that runs does.
	static, partitioned bool
	hostShm             bool
	shmMiB              int64
	uuid                string
	dirs                dirs
	// startScope moves processes to a systemd scope; nil without systemd.
	startScope func(context.Context, scope) error
}

// multiUserFlags are the spellings of one option: driver branches know one of
// them or none, and refuse or ignore the others.
var multiUserFlags = []string{"-multiuser-server", "--multiuser-server", "-M"}

// start runs the daemon, in a mount namespace of its own: the plugin runs itself
// again there to mount what the daemon sees (see Exec). That is its own directory in
// the place of the gate's, and as /dev/shm one which its clients share and whose
// size is limited (see limitShm), or the host's with tasks that share that.
func (c control) start(ctx context.Context, speaks dialect) (process, error) {
	if err := c.dirs.clearPipes(); err != nil {
		return process{}, err
	}
	attempts, problem := speaks.options()
	if problem != nil {
		return process{}, problem
	}
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
	if c.static && ctx.Err() == nil && !errors.Is(problem, mpsctl.ErrTimeout) {
		problem = noStatic(problem)
	}
	return process{}, fmt.Errorf("start MPS control daemon: %w", problem)
}

// in is the same control of other directories.
func (c control) in(d dirs) control {
	c.dirs, c.PipeDir = d, d.own
	return c
}

func (c control) launch(ctx context.Context, args []string) error {
	before := []string{ExecCommand, c.dirs.own, c.dirs.pipe}
	if !c.hostShm {
		before = append(before, c.dirs.shm, hostShm)
	}
	daemon := c.Control
	daemon.PipeDir, daemon.Env = c.dirs.pipe, slices.Concat(c.Env, c.driverEnv())
	_, err := daemon.Run(ctx, c.self, slices.Concat(before, []string{"--", c.Program}, args), "",
		&syscall.SysProcAttr{Setsid: true, Unshareflags: syscall.CLONE_NEWNS})
	return err
}

// driverEnv leads a daemon to the driver, where that is not installed as usual: the
// server's program lies beside the daemon's or in sbin, and loads libraries.
func (c control) driverEnv() []string {
	var env []string
	if dir := filepath.Dir(c.Program); filepath.IsAbs(dir) {
		env = append(env, "PATH="+strings.Join([]string{os.Getenv("PATH"), dir, filepath.Join(dir, "../sbin")}, ":"))
	}
	if c.libraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+c.libraryPath)
	}
	return env
}

// knows reports whether the daemon's branch has a command that changes nothing.
func (c control) knows(ctx context.Context, command string) (bool, error) {
	_, err := c.Ask(ctx, command)
	if errors.Is(err, mpsctl.ErrUnknown) {
		return false, nil
	}
	return err == nil, err
}

// quit asks a daemon to end.
func (c control) quit(daemon process) {
	if protocolOf(daemon.PID) == ProtocolV3 {
		_, _ = mpsctl.V3{Control: c.Control}.Do(context.Background(), "-q")
		return
	}
	_, _ = c.Ask(context.Background(), "quit -t 1")
}

// protocolOf is the protocol with which a daemon was started.
func protocolOf(pid int) Protocol {
	if args := arguments(pid); slices.Contains(args, "-p") && slices.Contains(args, "3") {
		return ProtocolV3
	}
	return ProtocolV2
}

// end stops the daemon, by force if it does not listen, with all that was ever
// started for its directories, and removes them.
func (c control) end(log hclog.Logger) {
	if p, err := c.find(); err == nil {
		log.Info("stopping MPS control daemon", "device", c.uuid, "pid", p.PID)
		c.quit(p)
	}
	if err := c.endAll(log, roleDaemon, roleServer, roleGate); err != nil {
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
