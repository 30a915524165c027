// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

type process = procs.Process

// children are the processes that any thread of a process has started.
func children(pid int) []int {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var all []int
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// role is what a process does for a daemon.
type role int

const (
	roleNone role = iota
	// roleDaemon is a control daemon, or the plugin's binary about to become one.
	roleDaemon
	// roleServer is an MPS server, with its parent or after it.
	roleServer
	// roleGate is the gate before a daemon.
	roleGate
)

// serverProgram is how control daemons start their servers.
const serverProgram = "nvidia-cuda-mps-server"

// roleOf tells what a process is for the daemon's directories. A container's
// processes have another PID namespace, whatever they call themselves; questions
// to the daemon, and host tasks with its directory in their environment, are
// another program or lack the option.
func (c control) roleOf(pid int) role {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !strings.Contains("\x00"+string(environment), "\x00CUDA_MPS_PIPE_DIRECTORY="+c.dirs.pipe+"\x00") {
		return roleNone
	}
	mine, err1 := os.Readlink("/proc/self/ns/pid")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err1 != nil || err2 != nil || mine != its {
		return roleNone
	}
	args := arguments(pid)
	switch {
	case len(args) == 0:
	case filepath.Base(args[0]) == serverProgram:
		return roleServer
	case filepath.Base(args[0]) == filepath.Base(c.Program) && slices.Contains(args[1:], "-d"),
		len(args) > 2 && args[1] == ExecCommand && args[2] == c.dirs.own:
		return roleDaemon
	case len(args) > 2 && args[1] == GateCommand && args[2] == c.dirs.pipe:
		return roleGate
	}
	return roleNone
}

func arguments(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// running lists all processes of a role that were ever started for the
// directories, known to the supervisor or not.
func (c control) running(roles ...role) []process {
	pids, err := procs.PIDs()
	if err != nil {
		return nil
	}
	var found []process
	for _, pid := range pids {
		p, err := procs.Find(pid)
		if err == nil && slices.Contains(roles, c.roleOf(pid)) {
			found = append(found, p)
		}
	}
	return found
}

// killWait is how long processes may take to end after SIGKILL.
const killWait = 10 * time.Second

// endLeftovers kills all daemons and servers that were ever started for the
// directories, also those that no socket and no record leads to.
func (c control) endLeftovers(log hclog.Logger) error {
	return c.endAll(log, roleDaemon, roleServer)
}

// endAll kills all processes of some roles. A daemon that is about to start a
// server can leave one behind, so it looks again.
func (c control) endAll(log hclog.Logger, roles ...role) error {
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	said := map[process]bool{}
	for {
		left := c.running(roles...)
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			if !said[p] {
				said[p] = true
				log.Info("ending MPS process", "device", c.uuid, "pid", p.PID)
			}
			if p.Alive() {
				_ = unix.Kill(p.PID, unix.SIGKILL)
			}
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end after SIGKILL", left[0].PID)
		}
	}
}

func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("find MPS control program: %w", err)
	}
	return path, nil
}
