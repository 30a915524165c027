// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestWhatCreateMakesOfWhatWasLeft: a start that was cut off left a snapshot, containerd a
// directory, or the image came back without its layers.
func TestWhatCreateMakesOfWhatWasLeft(t *testing.T) {
	there := func(m *memory) { m.snapshots["one"]["id"] = snapshots.Info{Name: "id"} }
	for name, c := range map[string]struct {
		left     func(m *memory)
		prepares []error
		others   map[string][]error
		image    map[string][]error
		unpacks  string
		err      error
	}{
		"nothing":                           {},
		"a snapshot":                        {left: there},
		"a snapshot that stays":             {left: there, others: map[string][]error{"snapshots.Remove": {errFailed}}, err: errFailed},
		"a snapshot that goes by itself":    {prepares: []error{errdefs.ErrAlreadyExists}},
		"a directory":                       {prepares: []error{errLeft}},
		"a directory that stays":            {prepares: []error{errLeft, errLeft}, err: errLeft},
		"no layers":                         {prepares: []error{errdefs.ErrNotFound}, unpacks: "one "},
		"no layers, whatever is done":       {prepares: []error{errdefs.ErrNotFound, errdefs.ErrNotFound}, unpacks: "one ", err: errdefs.ErrNotFound},
		"layers that cannot be unpacked":    {prepares: []error{errdefs.ErrNotFound}, image: map[string][]error{"Unpack": {errFailed}}, unpacks: "one ", err: errFailed},
		"it cannot be made":                 {others: map[string][]error{"containers.Create": {errFailed}}, err: errFailed},
		"neither can its snapshot":          {prepares: []error{errFailed}, err: errFailed},
		"no record of a sandbox":            {others: map[string][]error{"sandboxes.Create": {errFailed}}, err: errFailed},
		"sandboxes are not known":           {others: map[string][]error{"sandboxes.Create": {errdefs.ErrNotImplemented}}},
		"the record is there":               {others: map[string][]error{"sandboxes.Create": {errdefs.ErrAlreadyExists}}},
		"its root directory is not mounted": {others: map[string][]error{"snapshots.Mounts": {errFailed}}, err: errFailed},
	} {
		r, m := inMemory(t)
		s := putImage(t, m, []byte("layer"))
		image, err := r.ready(t.Context(), s, "")
		must.NoError(t, err)
		s.fails = c.image
		if c.left != nil {
			c.left(m)
		}
		for call, answers := range c.others {
			m.fails[call] = answers
		}
		m.fails["snapshots.Prepare"] = c.prepares
		made, err := r.Create(t.Context(), NewContainer{ID: "id", Image: image, Runtime: "io.containerd.runc.v2", Record: []byte("record"), User: "0:0"})
		must.ErrorIs(t, err, c.err, must.Sprint(name))
		must.Eq(t, c.unpacks, s.unpacks, must.Sprint(name))
		must.MapEmpty(t, m.leases, must.Sprint(name))
		_, known := r.configs.get(s.target.Digest.String() + " one")
		must.Eq(t, c.unpacks == "", known, must.Sprint(name, "what is not there is forgotten"))
		if c.err == nil {
			must.Eq(t, "record", string(made.Record))
			must.MapLen(t, 1, m.containers)
			must.MapLen(t, 1, m.snapshots["one"])
			continue
		}
		must.MapEmpty(t, m.containers, must.Sprint(name))
		must.StrNotContains(t, err.Error(), "%!", must.Sprint(name))
		if name != "no record of a sandbox" {
			must.MapEmpty(t, m.sandboxes, must.Sprint(name))
		}
		must.MapEmpty(t, m.snapshots["one"], must.Sprint(name))
		must.Eq(t, name == "a snapshot that stays", strings.Contains(err.Error(), "remove snapshot"), must.Sprint(name))
	}
}

// running is a container in memory with a process.
func running(t *testing.T) (*Container, *memory) {
	t.Helper()
	r, m := inMemory(t)
	m.containers["id"] = containers.Container{ID: "id", Snapshotter: "one", Runtime: containers.RuntimeInfo{Name: "io.containerd.runc.v2"}}
	m.tasks.get.Process = &tasktypes.Process{ID: "id", Pid: 1 << 30, Status: tasktypes.Status_RUNNING}
	return r.Unloaded("id", "image", nil, nil), m
}

// TestAContainerIsLoadedOnce, however many ask for it at once.
func TestAContainerIsLoadedOnce(t *testing.T) {
	c, m := running(t)
	m.fails["containers.Get"] = []error{errFailed}
	_, err := c.handle(t.Context())
	must.ErrorIs(t, err, errFailed)
	together(func(_, n int) {
		if n > 50 {
			return
		}
		runtime.Gosched()
		if _, err := c.handle(t.Context()); err != nil {
			t.Error(err)
		}
	})
	must.Eq(t, 2, m.times("containers.Get"))
}

// TestWhatAStartMayMeet: what is to be done before fails, or the shim dies.
func TestWhatAStartMayMeet(t *testing.T) {
	c, m := running(t)
	second := false
	err := c.Start(t.Context(), Stdio{}, func(context.Context) error { return errFailed }, func(context.Context) error { second = true; return nil })
	must.ErrorIs(t, err, errFailed)
	must.False(t, second)
	must.Eq(t, 0, m.times("tasks.Start"))
	m.fails["tasks.Metrics"] = []error{errFailed}
	m.fails["tasks.Start"] = []error{errdefs.ErrNotFound}
	err = c.Start(t.Context(), Stdio{})
	must.True(t, Transient(err))
	must.ErrorIs(t, err, errShimLost)
	m.fails["tasks.Metrics"] = []error{errFailed}
	m.fails["tasks.Start"] = []error{errFailed}
	err = c.Start(t.Context(), Stdio{})
	must.ErrorContains(t, err, errFailed.Error())
	must.False(t, Transient(err))
}

func TestWhatAProcessDoesNow(t *testing.T) {
	c, m := running(t)
	status, err := c.Status(t.Context())
	must.NoError(t, err)
	must.Eq(t, Status{Running: true, PID: 1 << 30}, status)
	m.tasks.get.Process.Status = tasktypes.Status_CREATED
	_, err = c.Status(t.Context())
	must.ErrorIs(t, err, ErrNotStarted)
	at := time.Unix(1700000000, 0).UTC()
	m.tasks.get.Process.Status, m.tasks.get.Process.ExitStatus, m.tasks.get.Process.ExitedAt = tasktypes.Status_STOPPED, 7, timestamppb.New(at)
	status, err = c.Status(t.Context())
	must.NoError(t, err)
	must.Eq(t, Status{Exit: Exit{Code: 7, At: at}}, status)
	for _, after := range [][]error{{errFailed}, {nil, errFailed}} {
		m.fails["tasks.Get"] = after
		_, err = c.Status(t.Context())
		must.ErrorContains(t, err, errFailed.Error())
	}
	for _, all := range []bool{false, true} {
		must.NoError(t, c.Signal(t.Context(), syscall.SIGTERM, all))
		must.Eq(t, all, m.tasks.killed[len(m.tasks.killed)-1].All)
	}
	must.False(t, c.OOMKilled(t.Context()), must.Sprint("its metrics are not known"))
}

// TestWaitingForAProcess: at containerd, or at its shim while containerd is away.
func TestWaitingForAProcess(t *testing.T) {
	c, m := running(t)
	at := time.Unix(1700000000, 0).UTC()
	m.tasks.wait = tasks.WaitResponse{ExitStatus: 8, ExitedAt: timestamppb.New(at)}
	exit, err := c.Wait(t.Context())
	must.NoError(t, err)
	must.Eq(t, Exit{Code: 8, At: at}, exit)

	m.fails["tasks.Wait"] = []error{errFailed}
	_, err = c.Wait(t.Context())
	must.ErrorContains(t, err, errFailed.Error(), must.Sprint("there is no shim"))
	must.ErrorContains(t, err, "wait for container id: ")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.fails["tasks.Wait"] = []error{errFailed}
	_, err = c.Wait(ctx)
	must.ErrorIs(t, err, context.Canceled)

	bundle, err := os.MkdirTemp("", "b") // t.TempDir is too long for sockets
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(bundle) })
	t.Chdir(bundle) // this process is the shim of those that it begins
	child := command(t, "sh")
	m.tasks.get.Process.Pid = uint32(child.Process.Pid)
	must.NoError(t, os.WriteFile("address", []byte("unix://"+filepath.Join(bundle, "shim")+"\n"), 0o600))
	must.Eq(t, filepath.Join(bundle, "shim"), shimSocket(uint32(child.Process.Pid)))
	must.Eq(t, "", shimSocket(1<<30), must.Sprint("there is no such process"))
	m.fails["tasks.Wait"] = []error{errFailed}
	_, err = c.Wait(t.Context())
	must.ErrorContains(t, err, errFailed.Error())
	must.ErrorContains(t, err, "at its shim")
	ended := time.Unix(1700000000, 5).UTC()
	closed := serveShim(t, filepath.Join(bundle, "shim"), ended)
	m.fails["tasks.Wait"] = []error{errFailed}
	m.containers["there"] = containers.Container{ID: "there"}
	exit, err = c.runtime.Unloaded("there", "", nil, nil).Wait(t.Context())
	must.NoError(t, err)
	must.Eq(t, Exit{Code: 7, At: ended}, exit)
	<-closed // the connection
	must.NoError(t, os.Remove("address"))
	must.Eq(t, "", shimSocket(uint32(child.Process.Pid)))
}

// TestSessionsAreThoseOfTheDriver among a container's processes.
func TestSessionsAreThoseOfTheDriver(t *testing.T) {
	c, m := running(t)
	process := func(of any) *tasktypes.ProcessInfo {
		packed, err := typeurl.MarshalAnyToProto(of)
		must.NoError(t, err)
		return &tasktypes.ProcessInfo{Info: packed}
	}
	m.tasks.pids.Processes = []*tasktypes.ProcessInfo{process(&options.ProcessDetails{ExecID: "exec-1"}), {}, process(&options.ProcessDetails{ExecID: "other"}), process(&options.ProcessDetails{ExecID: "exec-2"})}
	n, err := c.Sessions(t.Context())
	must.NoError(t, err)
	must.Eq(t, 2, n)
	for says, answers := range map[string][]error{
		"load exec in container id: " + errFailed.Error():          {nil, errFailed},
		"end exec in container id: current process state: running": {nil, errdefs.ErrNotFound}, // the second, which this memory cannot kill
	} {
		m.fails["tasks.Get"] = answers
		must.ErrorContains(t, c.EndSessions(t.Context()), says)
	}
	m.fails["tasks.Get"] = []error{nil, errdefs.ErrNotFound, errdefs.ErrNotFound}
	must.NoError(t, c.EndSessions(t.Context()))
	m.tasks.pids.Processes = append(m.tasks.pids.Processes, &tasktypes.ProcessInfo{Info: &anypb.Any{TypeUrl: "none.such"}})
	_, err = c.Sessions(t.Context())
	must.ErrorContains(t, err, "list processes of container id")
}

// TestWhatRemovingMeets: what is gone already, and what does not go.
func TestWhatRemovingMeets(t *testing.T) {
	for name, c := range map[string]struct {
		fails map[string][]error
		err   error
	}{
		"all of it goes":                   {},
		"there is no snapshot":             {fails: map[string][]error{"snapshots.Remove": {errdefs.ErrNotFound}}},
		"there is no container any more":   {fails: map[string][]error{"containers.Delete": {errdefs.ErrNotFound}}},
		"there is no container":            {fails: map[string][]error{"containers.Get": {errdefs.ErrNotFound}}},
		"there is no record":               {fails: map[string][]error{"sandboxes.Delete": {errdefs.ErrNotFound}}},
		"there are no records":             {fails: map[string][]error{"sandboxes.Delete": {errdefs.ErrNotImplemented}}},
		"the snapshot stays":               {fails: map[string][]error{"snapshots.Remove": {errFailed}}, err: errFailed},
		"the container stays":              {fails: map[string][]error{"containers.Delete": {errFailed}}, err: errFailed},
		"the record stays":                 {fails: map[string][]error{"sandboxes.Delete": {errFailed}}, err: errFailed},
		"the record alone stays":           {fails: map[string][]error{"containers.Get": {errdefs.ErrNotFound}, "sandboxes.Delete": {errFailed}}, err: errFailed},
		"nobody knows whether it is there": {fails: map[string][]error{"containers.Get": {errFailed}}, err: errFailed},
	} {
		box, m := running(t)
		m.containers["id"] = containers.Container{ID: "id", Snapshotter: "one", SnapshotKey: "id"}
		m.snapshots["one"]["id"] = snapshots.Info{Name: "id"}
		for call, answers := range c.fails {
			m.fails[call] = answers
		}
		must.ErrorIs(t, box.Remove(t.Context()), c.err, must.Sprint(name))
	}
	box, m := running(t)
	must.NoError(t, box.Remove(t.Context()))
	must.Eq(t, 0, m.times("snapshots.Remove"), must.Sprint("it has none"))
}

// TestLeftoversOfEverySnapshotterAreCollected, and what is held is not.
func TestLeftoversOfEverySnapshotterAreCollected(t *testing.T) {
	r, m := inMemory(t)
	m.containers["kept"] = containers.Container{ID: "kept"}
	now := time.Now()
	for _, all := range m.snapshots {
		for _, key := range []string{"kept", "gone", "gone-too"} {
			all[key] = snapshots.Info{Name: key, Created: now}
		}
	}
	for _, id := range []string{"kept", "gone", "gone-too"} {
		m.sandboxes[id] = sandbox.Sandbox{ID: id, CreatedAt: now}
	}
	m.fails["leases.Delete"] = []error{errFailed}
	_, done, err := r.protect(t.Context())
	must.NoError(t, err)
	for _, lease := range m.leases {
		expires, err := time.Parse(time.RFC3339, lease.Labels["containerd.io/gc.expire"])
		must.NoError(t, err)
		must.Between(t, 23*time.Hour, time.Until(expires), 24*time.Hour)
	}
	none := regexp.MustCompile("^no such ID$")
	must.NoError(t, r.CollectLeftovers(t.Context(), none, now.Add(time.Hour)))
	must.MapLen(t, 1, m.leases, must.Sprint("that which is held"))
	done(nil)
	must.MapLen(t, 1, m.leases, must.Sprint("containerd was away"))
	must.NoError(t, r.CollectLeftovers(t.Context(), none, now.Add(time.Hour)))
	must.MapEmpty(t, m.leases)
	must.MapLen(t, 1, m.sandboxes)
	for _, all := range m.snapshots {
		must.MapLen(t, 1, all)
		must.MapContainsKey(t, all, "kept")
	}
	names, err := r.Snapshotters(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{"one", "two"}, names, must.Sprint("in order"))
	for _, call := range []string{"plugins", "snapshots.Walk", "sandboxes.List", "leases.List"} {
		m.fails[call] = []error{errFailed}
		must.ErrorIs(t, r.CollectLeftovers(t.Context(), none, now), errFailed, must.Sprint(call))
	}
	m.fails["sandboxes.List"] = []error{errdefs.ErrNotImplemented}
	must.NoError(t, r.CollectLeftovers(t.Context(), none, now))
}

func TestLabelsHaveTheirOwner(t *testing.T) {
	r := &Runtime{config: Config{Owner: "me", Snapshotter: "mine"}}
	must.Eq(t, map[string]string{ownerLabel: "me", "a": "b"}, r.ownedLabels(map[string]string{"a": "b", ownerLabel: "you"}))
	must.Eq(t, map[string]string{ownerLabel: "me", "a": "b"}, r.ownedLabels(map[string]string{"a": "b"}))
	must.Eq(t, "mine", r.snapshotter(""))
	must.Eq(t, "yours", r.snapshotter("yours"))
}

func TestOutputGoesWhereItIsTold(t *testing.T) {
	for terminal, stderr := range map[bool]string{false: "e", true: ""} {
		given, err := Stdio{Stdout: "o", Stderr: "e", Terminal: terminal}.creator("id")
		must.NoError(t, err)
		is := given.Config()
		must.Eq(t, []any{terminal, "", "o", stderr}, []any{is.Terminal, is.Stdin, is.Stdout, is.Stderr})
	}
}

// TestWhoATaskIs, by the image's files. Only root has capabilities from the beginning.
func TestWhoATaskIs(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte("root:x:0:0::/:/bin/sh\ndaemon:x:1:1::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n"), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(root, "etc", "group"), []byte("root:x:0:\nvideo:x:44:app\nextra:x:77:\n"), 0o644))
	all := []string{"CAP_CHOWN"}
	for name, c := range map[string]struct {
		n       NewContainer
		uid     uint32
		groups  []uint32
		hasCaps bool
		fails   bool
	}{
		"nobody is named": {n: NewContainer{}, uid: 0, hasCaps: true},
		"root":            {n: NewContainer{User: "root"}, uid: 0, hasCaps: true},
		"the first other": {n: NewContainer{User: "daemon"}, uid: 1},
		"in a group":      {n: NewContainer{User: "app"}, uid: 1000, groups: []uint32{44}},
		"the image's":     {n: NewContainer{Image: Image{Config: imageUser("app")}}, uid: 1000, groups: []uint32{44}},
		"the task's":      {n: NewContainer{User: "daemon", Image: Image{Config: imageUser("app")}}, uid: 1},
		"with a group":    {n: NewContainer{User: "daemon", Groups: []string{"extra"}}, uid: 1, groups: []uint32{77}},
		"unknown":         {n: NewContainer{User: "ghost"}, fails: true},
		"unknown group":   {n: NewContainer{Groups: []string{"ghosts"}}, fails: true},
		"with devices": {n: NewContainer{User: "daemon", CDI: func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
			s.Process.User.AdditionalGids = append(s.Process.User.AdditionalGids, 5)
			return nil
		}}, uid: 1, groups: []uint32{5}},
		"with devices that are not there": {n: NewContainer{CDI: func(context.Context, oci.Client, *containers.Container, *oci.Spec) error { return errFailed }}, fails: true},
	} {
		s := &oci.Spec{Linux: &specs.Linux{}, Root: &specs.Root{Path: root}, Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all, Inheritable: all, Ambient: all}}}
		err := c.n.fitInto(t.Context(), nil, &containers.Container{}, s, root)
		must.Eq(t, c.fails, err != nil, must.Sprint(name, err))
		if err != nil {
			continue
		}
		must.Eq(t, c.uid, s.Process.User.UID, must.Sprint(name))
		for _, gid := range c.groups {
			must.SliceContains(t, s.Process.User.AdditionalGids, gid, must.Sprint(name))
		}
		must.Eq(t, c.hasCaps, slices.Equal(all, s.Process.Capabilities.Effective), must.Sprint(name))
		must.Eq(t, all, s.Process.Capabilities.Bounding, must.Sprint(name))
	}
	must.NoError(t, os.Remove(filepath.Join(root, "etc", "group")))
	must.NoError(t, syscall.Mkfifo(filepath.Join(root, "etc", "group"), 0o600))
	must.ErrorContains(t, NewContainer{}.fitInto(t.Context(), nil, nil, nil, root), "is not a regular file")
}

func TestErrorsOfOneKind(t *testing.T) {
	must.ErrorIs(t, notFound(errdefs.ErrNotFound), ErrNotFound)
	must.False(t, errors.Is(notFound(errFailed), ErrNotFound))
}

func imageUser(name string) ispec.ImageConfig { return ispec.ImageConfig{User: name} }
