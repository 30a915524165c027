package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/ttrpc"
	"github.com/prometheus/procfs"
)

// Containerd cleans up after a shim that dies, but only what is there at that
// moment. An OCI runtime that the shim had begun goes on, and makes the container
// for nobody. And a containerd that dies while it starts a shim does not know of
// it afterwards. Both are found by their command lines, where the container's ID
// stands, which no two containers have in common.

// errShimLost means that what containerd had for a container was killed while it
// was asked something: the shim, or an OCI runtime that works for it.
var errShimLost = errors.New("the container's shim died")

// shimLossWords are in what containerd then says, which tells it in words only.
var shimLossWords = []string{ttrpc.ErrClosed.Error(), "signal: killed", "connection refused"}

// lostShim marks the errors of containerd that come of such a death.
func lostShim(err error) error {
	if slices.ContainsFunc(shimLossWords, func(words string) bool { return strings.Contains(err.Error(), words) }) {
		return fmt.Errorf("%w: %w", errShimLost, err)
	}
	return err
}

// ociState is where containerd's shim lets an OCI runtime keep what it knows of
// its containers, by namespace.
const ociState = "/run/containerd/runc"

// strayPause is between two looks for strays.
const strayPause = 20 * time.Millisecond

// killStrays kills what still tends a container that has no process, and waits
// for its end.
func (r *Runtime) killStrays(ctx context.Context, id string) error {
	for {
		strays, err := tenders(func(args []string) string {
			if r.creates(args, id) {
				return id
			}
			return r.shimFor(args)
		})
		if err != nil {
			return err
		}
		strays = slices.DeleteFunc(strays, func(t tender) bool { return t.container != id })
		if len(strays) == 0 {
			break
		}
		for _, s := range strays {
			if err := syscall.Kill(s.process.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d, which tends container %s: %w", s.process.PID, id, err)
			}
		}
		select {
		case <-time.After(strayPause):
		case <-ctx.Done():
			return fmt.Errorf("kill what tends container %s: %w", id, ctx.Err())
		}
	}
	if err := os.RemoveAll(filepath.Join(ociState, r.config.Namespace, id)); err != nil {
		return fmt.Errorf("remove the OCI runtime's state of container %s: %w", id, err)
	}
	return nil
}

// collectShims kills the shims of this containerd whose container is gone.
func (r *Runtime) collectShims(ctx context.Context, orphan orphanFunc) error {
	shims, err := tenders(r.shimFor)
	if err != nil {
		return err
	}
	for _, s := range shims {
		stat, err := s.process.Stat()
		if err != nil {
			continue // it ended
		}
		started, err := stat.StartTime()
		if err != nil {
			return fmt.Errorf("read when shim %d started: %w", s.process.PID, err)
		}
		is, err := orphan(s.container, time.UnixMilli(int64(started*1000)))
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		r.log.Warnf("killing shim %d of container %s, which is gone", s.process.PID, s.container)
		if err := r.killStrays(ctx, s.container); err != nil {
			return err
		}
	}
	return nil
}

// tender is a process that tends a container.
type tender struct {
	process   procfs.Proc
	container string
}

// tenders returns the processes in whose command line the given function finds a
// container's ID.
func tenders(containerIn func(args []string) string) ([]tender, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []tender
	for _, p := range all {
		args, err := p.CmdLine()
		if err != nil || len(args) == 0 {
			continue // it ended
		}
		if id := containerIn(args); id != "" {
			found = append(found, tender{p, id})
		}
	}
	return found, nil
}

// shimFor returns the container whose shim, of this containerd and namespace, has
// this command line, or "". What containerd runs to clean up after a shim, called
// "delete", is none.
func (r *Runtime) shimFor(args []string) string {
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") || args[len(args)-1] == "delete" ||
		option(args, "-namespace") != r.config.Namespace || option(args, "-address") != strings.TrimPrefix(r.config.Socket, "unix://") {
		return ""
	}
	return option(args, "-id")
}

// creates reports whether a process of this command line is an OCI runtime that
// makes the container.
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
