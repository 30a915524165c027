// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/procfs"
)

// Containerd cleans up after a shim that dies, but only processes that are there at that
// moment. A runc that the shim had begun goes on, and makes a container that has
// no task. And a containerd that dies while it starts a shim does not know of it
// afterwards. Both are found by their command lines, where the container's ID
// stands, which no two containers of ours have in common. A task that shares the
// node's process IDs can write such a line too: so all that may follow from one is
// the end of its process.

// errShimLost means that a container's shim died while it was asked something.
var errShimLost = errors.New("the container's shim died")

// deathsAtStart are what containerd says of a shim that dies while it starts: the last when
// it has removed the shim's folder already, while it still writes there.
var deathsAtStart = []string{"signal: killed", "connection refused", "failed to write bootstrap.json"}

// lostShim marks the errors of containerd that come of such a death, which it
// tells in words only.
func lostShim(err error) error {
	if err == nil || errdefs.IsUnavailable(err) {
		return err
	}
	said := err.Error()
	atStart := strings.Contains(said, "failed to start shim") && slices.ContainsFunc(deathsAtStart, func(death string) bool { return strings.Contains(said, death) })
	if atStart || strings.Contains(said, ttrpc.ErrClosed.Error()) {
		return fmt.Errorf("%w: %w", errShimLost, err)
	}
	return err
}

// ociState is where containerd's shim lets runc keep the state of its
// containers, by namespace.
const ociState = "/run/containerd/runc"

// shimPause is between two looks at how a shim does.
const shimPause = 20 * time.Millisecond

// killShim kills what still works for a container that has no process, its shim
// and a runc that makes it, waits for their end, and removes what runc wrote.
func (r *Runtime) killShim(ctx context.Context, id string) error {
	works := func(args []string) bool { return r.shimFor(args) == id || r.creates(args, id) }
	for {
		found, err := processes(works)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			break
		}
		for _, p := range found {
			if err := kill(p, works); err != nil {
				return fmt.Errorf("container %s: %w", id, err)
			}
		}
		select {
		case <-time.After(shimPause):
		case <-ctx.Done():
			return fmt.Errorf("kill what works for container %s: %w", id, ctx.Err())
		}
	}
	if err := os.RemoveAll(filepath.Join(ociState, r.config.Namespace, id)); err != nil {
		return fmt.Errorf("remove runc's state of container %s: %w", id, err)
	}
	return nil
}

// collectShims kills the shims of this containerd whose container, one of ours, is
// gone.
func (r *Runtime) collectShims(ids *regexp.Regexp, orphan orphanFunc) error {
	ours := func(args []string) bool {
		id := r.shimFor(args)
		return id != "" && ids.MatchString(id) // "" are all processes that are no shims
	}
	found, err := processes(ours)
	problems := []error{err}
	for _, p := range found {
		stat, err := p.Stat()
		if err != nil {
			continue // it ended
		}
		started, err := stat.StartTime()
		if err != nil {
			problems = append(problems, fmt.Errorf("read when shim %d started: %w", p.PID, err))
			continue
		}
		id := r.shimFor(p.args)
		orphaned, err := orphan(id, time.UnixMilli(int64(started*1000)))
		if err == nil && orphaned {
			r.log.Warnf("killing shim %d of container %s, which is gone", p.PID, id)
			err = kill(p, func(args []string) bool { return ours(args) && r.shimFor(args) == id })
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// process is one of this machine, with the command line that it was found by.
type process struct {
	procfs.Proc
	args []string
}

// processes returns the processes of this machine with matching command lines. It
// leaves out those of other PID namespaces, which no shim has: reading the command
// line of a process that hangs, in the driver of a GPU say, may hang too.
func processes(matching func(args []string) bool) ([]process, error) {
	all, err := procfs.AllProcs()
	own, ownErr := os.Readlink("/proc/self/ns/pid")
	if err := errors.Join(err, ownErr); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, p := range all {
		if namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.PID)); err != nil || namespace != own {
			continue
		}
		args, _ := p.CmdLine() // nothing of one that has ended
		if matching(args) {
			found = append(found, process{p, args})
		}
	}
	return found, nil
}

// kill kills a process if it is still the one with a matching command line.
func kill(p process, matching func(args []string) bool) error {
	held, _ := os.FindProcess(p.PID) // always succeeds: a descriptor, so that no other process gets the number
	if args, _ := p.CmdLine(); !matching(args) {
		return nil // it has ended
	}
	if err := held.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// shimFor returns the container whose shim, of this containerd and namespace, has
// this command line, or "". What containerd runs to clean up after a shim, called
// "delete", is none.
func (r *Runtime) shimFor(args []string) string {
	// A process that has just ended has no command line any more.
	if len(args) == 0 || !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") || args[len(args)-1] == "delete" ||
		option(args, "-namespace") != r.config.Namespace || !sameFile(option(args, "-address"), r.config.Socket) {
		return ""
	}
	return option(args, "-id")
}

// creates reports whether a process of this command line is a runc that makes the
// container.
func (r *Runtime) creates(args []string, id string) bool {
	return slices.Contains(args, "create") && args[len(args)-1] == id &&
		option(args, "--root") == filepath.Join(ociState, r.config.Namespace) && filepath.Base(option(args, "--bundle")) == id
}

// option returns the argument after the named one, or "".
func option(args []string, name string) string {
	if at := slices.Index(args, name); at >= 0 && at+1 < len(args) {
		return args[at+1]
	}
	return ""
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
