// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/sirupsen/logrus"
)

// idler is a process that does nothing until its input ends.
type idler struct {
	*exec.Cmd
	in io.Closer
}

// command runs a process with such a command line: a shell, which takes no
// notice of its further arguments.
func command(t *testing.T, name string, args ...string) idler {
	t.Helper()
	return commandIn(t, 0, name, args...)
}

// commandIn runs it in namespaces of its own.
func commandIn(t *testing.T, namespaces uintptr, name string, args ...string) idler {
	t.Helper()
	cmd := &exec.Cmd{Path: "/bin/sh", Args: append([]string{name, "-c", "read line"}, args...), SysProcAttr: &syscall.SysProcAttr{Cloneflags: namespaces}}
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	i := idler{cmd, in}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			i.killed()
		}
	})
	return i
}

// killed ends the process, and reports whether it had been killed before.
func (i idler) killed() bool {
	_ = i.in.Close()
	_ = i.Wait()
	return i.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// ofNoContainerd is a Runtime of a namespace that no containerd has, and its log.
func ofNoContainerd(t *testing.T) (*Runtime, *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	var said bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&said)
	return &Runtime{config: Config{Namespace: "ns-" + strings.ReplaceAll(dir, "/", "-"), Socket: filepath.Join(dir, "s")}, log: logrus.NewEntry(logger)}, &said
}

// shimOf is a process that looks like the shim of a container.
func shimOf(t *testing.T, r *Runtime, id string) idler {
	return command(t, "containerd-shim-test", "-namespace", r.config.Namespace, "-address", r.config.Socket, "-id", id, "start")
}

// runcOf is a process that looks like a runc that makes a container.
func runcOf(t *testing.T, r *Runtime, id string) idler {
	return command(t, "runc", "--root", filepath.Join(ociState, r.config.Namespace), "create", "--bundle", "/b/"+id, id)
}

func TestWhatWorksForAContainerIsKilled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("runc's state is root's")
	}
	r, _ := ofNoContainerd(t)
	mine := []idler{shimOf(t, r, "a"), shimOf(t, r, "a"), runcOf(t, r, "a")}
	others := []idler{shimOf(t, r, "b"), runcOf(t, r, "b"), command(t, "sh", "a")}
	state := filepath.Join(ociState, r.config.Namespace, "a")
	must.NoError(t, os.MkdirAll(filepath.Join(state, "x"), 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(state)) })
	must.NoError(t, r.killShim(t.Context(), "a"))
	_, err := os.Stat(state)
	must.ErrorIs(t, err, os.ErrNotExist)
	for _, p := range mine {
		must.True(t, p.killed())
	}
	for _, p := range others {
		must.False(t, p.killed())
	}
	must.NoError(t, r.killShim(t.Context(), "a"), must.Sprint("there is nothing to kill"))
	must.ErrorContains(t, r.killShim(t.Context(), "a\x00"), "remove runc's state of container")

	one := shimOf(t, r, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = r.killShim(ctx, "a")
	must.ErrorIs(t, err, context.Canceled)
	must.ErrorContains(t, err, "container a")
	must.True(t, one.killed())

	// One that was another process when it was found is left alone.
	other := shimOf(t, r, "b")
	found, err := processes(func(args []string) bool { return r.shimFor(args) == "b" })
	must.NoError(t, err)
	must.Len(t, 1, found)
	must.Eq(t, other.Process.Pid, found[0].PID)
	must.NoError(t, kill(found[0], func(args []string) bool { return r.shimFor(args) == "a" }))
	must.False(t, other.killed())
	must.NoError(t, kill(found[0], func(args []string) bool { return args == nil }), must.Sprint("it has ended"))
}

// TestProcessesOfOtherNamespacesAreNotLookedAt: to read their command lines may hang.
func TestProcessesOfOtherNamespacesAreNotLookedAt(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces of processes need root")
	}
	r, _ := ofNoContainerd(t)
	inside := commandIn(t, syscall.CLONE_NEWPID, "containerd-shim-test", "-namespace", r.config.Namespace, "-address", r.config.Socket, "-id", "a")
	found, err := processes(func(args []string) bool { return r.shimFor(args) == "a" })
	must.NoError(t, err)
	must.SliceEmpty(t, found)
	must.False(t, inside.killed())
}

// TestShimsOfContainersThatAreGoneAreKilled, and the log says so.
func TestShimsOfContainersThatAreGoneAreKilled(t *testing.T) {
	r, said := ofNoContainerd(t)
	shims := map[string]idler{"gone-1": shimOf(t, r, "gone-1"), "kept": shimOf(t, r, "kept"), "gone-2": shimOf(t, r, "gone-2"), "unknown": shimOf(t, r, "unknown"), "theirs": shimOf(t, r, "theirs")}
	const week = 7 * 24 * time.Hour
	now := time.Now()
	asked := map[string]time.Time{}
	err := r.collectShims(regexp.MustCompile("^(gone-.|kept|unknown)$"), func(id string, started time.Time) (bool, error) {
		asked[id] = started
		if id == "unknown" {
			return true, errFailed
		}
		return strings.HasPrefix(id, "gone"), nil
	})
	must.ErrorIs(t, err, errFailed)
	must.MapLen(t, 4, asked)
	for id, started := range asked {
		must.Between(t, -week, now.Sub(started), week, must.Sprint(id)) // clocks of virtual machines jump
	}
	for id, shim := range shims {
		must.Eq(t, strings.HasPrefix(id, "gone"), shim.killed(), must.Sprint(id))
		must.Eq(t, strings.HasPrefix(id, "gone"), strings.Contains(said.String(), "of container "+id+", which is gone"), must.Sprint(id))
	}
	// What is no shim has no ID, and so none that matches.
	must.NoError(t, r.collectShims(regexp.MustCompile("^$|gone-1"), func(id string, _ time.Time) (bool, error) { return false, errors.New("asked for " + id) }))
}

func TestRuncIsWhereContainerdFindsIt(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"none": 0o644, "other": 0o001, "all": 0o755} {
		must.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(dir, name, "runc"), nil, 0o644))
		must.NoError(t, os.Chmod(filepath.Join(dir, name, "runc"), mode))
	}
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "folder", "runc"), 0o755))
	at := func(names ...string) string {
		for i := range names {
			names[i] = filepath.Join(dir, names[i])
		}
		return strings.Join(names, ":")
	}
	for path, want := range map[string]string{
		at("all"):                             at("all/runc"),
		at("none", "folder", "all"):           at("all/runc"),
		at("missing", "other", "all"):         at("other/runc"),
		at("none", "folder", "missing"):       "",
		"":                                    "",
		"relative" + ":" + at("other"):        at("other/runc"),
		at("all") + ":" + at("other") + "::.": at("all/runc"),
	} {
		must.Eq(t, want, runcOn(path), must.Sprint(path))
	}
	t.Chdir(filepath.Join(dir, "all"))
	must.Eq(t, "", runcOn("."), must.Sprint("Go runs no program of the working directory"))
	for environ, want := range map[string]string{"PATH=/a:/b\x00A=b\x00": "/a:/b", "A=b\x00PATH=/c\x00PATH=/d": "/c", "A=b\x00": "", "": "", "MYPATH=/x\x00": ""} {
		must.Eq(t, want, pathIn([]byte(environ)))
	}
}

func TestWhatRuncSaysOfItself(t *testing.T) {
	for said, want := range map[string]RuncVersion{
		"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1\nspec: 1.0.2-dev\n": {Path: "/r", Version: "1.1.5+ds1", Build: "1.1.5+ds1-1"},
		"hello\nrunc version 1.2\n":                                      {Path: "/r", Version: "1.2"},
		"commit: x\n":                                                    {},
		"":                                                               {},
	} {
		is, err := versionOf("/r", said)
		must.Eq(t, want, is)
		must.Eq(t, want.Version == "", err != nil)
	}
}

// TestContainerdIsAskedForItsPathOnce, by its process's environment, over a connection that
// is closed then. This process is in the place of containerd.
func TestContainerdIsAskedForItsPathOnce(t *testing.T) {
	dir, err := os.MkdirTemp("", "r") // t.TempDir is too long for sockets
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	must.NoError(t, err)
	defer listener.Close()
	r := &Runtime{config: Config{Socket: filepath.Join(dir, "s")}}
	environ, err := os.ReadFile("/proc/self/environ")
	must.NoError(t, err)
	want := runcOn(pathIn(environ))
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close it too
	path, err := r.runcPath(t.Context())
	must.Eq(t, want, path)
	must.Eq(t, want == "", err != nil)
	conn, err := listener.Accept()
	must.NoError(t, err)
	defer conn.Close()
	must.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	must.ErrorIs(t, err, io.EOF)
}

// TestWhatARuntimeLogs goes where its configuration says, and else nowhere.
func TestWhatARuntimeLogs(t *testing.T) {
	var said bytes.Buffer
	for _, log := range []io.Writer{&said, nil} {
		r, err := New(Config{Socket: filepath.Join(t.TempDir(), "s"), Log: log})
		must.NoError(t, err)
		r.log.Warn("a warning")
		must.Eq(t, log == nil, r.log.Logger.Out == io.Discard)
		must.StrContains(t, said.String(), "a warning")
		must.NoError(t, r.Close())
		must.Error(t, r.Close(), must.Sprint("it is closed"))
	}
}

// TestFilesOfUsersAreClosed again.
func TestFilesOfUsersAreClosed(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(root, "etc", "passwd"), nil, 0o644))
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close them too
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must.NoError(t, err)
		return len(all)
	}
	before := open()
	for range 100 {
		must.NoError(t, plainUserFiles(root))
	}
	must.Less(t, before+50, open())
}
