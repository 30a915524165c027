// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// gateName is what a gate is called in lists of processes.
const gateName = "nomad-gpu-mps-gate"

// gatePoll is how often to look for a gate that is being started.
const gatePoll = 10 * time.Millisecond

// openGate adopts the gate that lives, or starts one. What programs have by then
// from an earlier gate is a connection to their server, which stays.
func (k *keeper) openGate(ctx context.Context) error {
	if k.control.dirs.ungated() {
		return nil
	}
	found, err := k.control.findGate()
	switch {
	case errors.Is(err, errBusy) && k.gate.Alive():
		return nil
	case errors.Is(err, errBusy):
		return err
	case err != nil:
		k.log.Info("starting the gate of an MPS control daemon", "device", k.control.uuid)
		if found, err = k.control.startGate(ctx); err != nil {
			return fmt.Errorf("start the gate before the daemon: %w", err)
		}
		k.control.endOtherGates(found)
	}
	if k.gate != (process{}) && k.gate != found {
		k.separate(ctx, found)
	}
	k.gate = found
	k.mu.Lock()
	changed := k.status.GateDir != k.control.gateDir()
	k.status.GateDir = k.control.gateDir()
	k.mu.Unlock()
	if changed {
		k.changed()
	}
	return nil
}

// endOtherGates ends gates that no task finds any more.
func (c control) endOtherGates(than process) {
	for _, p := range c.running(roleGate) {
		if p != than && p.Alive() {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	}
}

// gateDir is where the gate keeps its files; empty of one of an earlier release, which keeps none.
func (c control) gateDir() string {
	dir := keptBeside(c.dirs.own)
	if _, err := os.Lstat(filepath.Join(dir, controlSocket)); err != nil {
		return ""
	}
	return dir
}

// findGate returns the gate of the tasks. It is asked at its kept socket: tasks may have put another in
// the place of the one that they see.
func (c control) findGate() (process, error) {
	path := c.dirs.gate()
	if dir := c.gateDir(); dir != "" {
		path = filepath.Join(dir, controlSocket)
	}
	pid, err := listener(path)
	if err != nil {
		return process{}, err
	}
	if c.roleOf(pid) != roleGate {
		return process{}, fmt.Errorf("process %d listens on %s and is not the gate: %w", pid, path, procs.ErrGone)
	}
	if mpsctl.PlacesOf(c.dirs.own).Exist() && !slices.Contains(arguments(pid), knowsPlaces) {
		return process{}, fmt.Errorf("process %d is the gate of an earlier release, which places no programs: %w", pid, procs.ErrGone)
	}
	return procs.Find(pid)
}

// startGate runs a gate, which takes the place of whatever listens where tasks
// connect. Its log lies beside the daemon's. The gate that a plugin was starting when
// it was killed is waited for, and taken.
func (c control) startGate(parent context.Context) (process, error) {
	ctx, cancel := context.WithTimeout(parent, c.Timeout)
	defer cancel()
	lock, err := c.lockGate(ctx)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) && parent.Err() == nil {
			c.endOtherGates(process{}) // none listens, and one that hangs keeps the lock
		}
		return process{}, err
	}
	defer lock.Close()
	if found, err := c.findGate(); err == nil || errors.Is(err, errBusy) {
		return found, err
	}
	log, err := os.OpenFile(filepath.Join(c.dirs.log, gateLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, c.self, GateCommand, detach, c.dirs.pipe, c.dirs.own, knowsPlaces)
	cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + c.dirs.pipe}
	cmd.Dir, cmd.Stdin, cmd.Stderr = "/", lock, log
	said, err := cmd.Output()
	if err != nil {
		return process{}, fmt.Errorf("%w; see %s", err, log.Name())
	}
	pid, err := strconv.Atoi(string(said))
	if err != nil {
		return process{}, fmt.Errorf("its number is %q: %w", said, err)
	}
	for {
		if found, err := c.findGate(); err == nil && found.PID == pid {
			return found, nil
		}
		if _, err := procs.Find(pid); err != nil {
			return process{}, fmt.Errorf("it ended; see %s", log.Name())
		}
		select {
		case <-time.After(gatePoll):
		case <-ctx.Done():
			_ = unix.Kill(pid, unix.SIGKILL)
			if parent.Err() != nil {
				return process{}, parent.Err()
			}
			return process{}, errors.New("it does not listen")
		}
	}
}

// lockGate keeps others from starting a gate. The gate inherits the lock as its standard
// input, and closes it when it listens. The file lies where tasks do not reach it.
func (c control) lockGate(ctx context.Context) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(filepath.Dir(c.dirs.own), "gate.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the gate: %w", err)
	}
	for {
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return file, nil
		}
		select {
		case <-time.After(gatePoll):
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("a gate that is being started does not listen: %w", ctx.Err())
		}
	}
}

// detach, as the first argument of a gate, has it start the gate in a session of
// its own and end: a gate, like a daemon, is no child of the plugin, and leaves no
// zombie.
const detach = "detach"

// detachGate starts a gate, and prints its number.
func detachGate(args []string) error {
	cmd := exec.Command("/proc/self/exe", slices.Insert(slices.Clone(args), 0, GateCommand)...)
	cmd.Args[0] = gateName // who looks for the plugin does not find this
	cmd.Dir, cmd.Stdin, cmd.Stderr, cmd.SysProcAttr = "/", os.Stdin, os.Stderr, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err := fmt.Print(cmd.Process.Pid)
	return err
}
