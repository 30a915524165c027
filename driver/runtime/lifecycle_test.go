// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// made makes a container of the test image, with a log file.
func made(t *testing.T, r *Runtime, id string, change func(*NewContainer), command ...string) (*Container, Stdio) {
	t.Helper()
	n := NewContainer{ID: id, Image: box(t, r, "box"), Options: []oci.SpecOpts{oci.WithProcessArgs(command...), oci.WithEnv([]string{"PATH=/bin"})},
		Labels: map[string]string{"kind": "test", "id": id}, Record: []byte("record of " + id), Runtime: "io.containerd.runc.v2"}
	if change != nil {
		change(&n)
	}
	c, err := r.Create(t.Context(), n)
	must.NoError(t, err)
	log := filepath.Join(t.TempDir(), "log")
	must.NoError(t, os.WriteFile(log, nil, 0o600))
	return c, Stdio{Stdout: log, Stderr: log}
}

// TestAContainersLife goes through what the driver asks of one, in each of its states.
func TestAContainersLife(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		c, stdio := made(t, r, "life-1", nil, "sh", "-c", "echo begun; trap 'exit 42' USR1; while true; do sleep 0.05; done")

		_, err := c.Status(ctx)
		must.ErrorIs(t, err, ErrNotFound)
		_, err = c.Wait(ctx)
		must.ErrorIs(t, err, ErrNotFound)
		must.ErrorIs(t, c.Signal(ctx, syscall.SIGTERM, false), ErrNotFound)
		_, err = c.Metrics(ctx)
		must.ErrorIs(t, err, ErrNotFound)
		must.False(t, c.OOMKilled(ctx))
		_, err = c.Sessions(ctx)
		must.ErrorIs(t, err, ErrNotFound)

		must.NoError(t, c.Start(ctx, stdio))
		status, err := c.Status(ctx)
		must.NoError(t, err)
		must.True(t, status.Running)
		must.NoError(t, syscall.Kill(status.PID, 0))
		loaded, err := r.Load(ctx, "life-1")
		must.NoError(t, err)
		must.Eq(t, "record of life-1", string(loaded.Record))
		must.Eq(t, c.Image, loaded.Image)
		must.Eq(t, r.config.Owner, loaded.Labels[ownerLabel])
		must.False(t, loaded.CreatedAt.IsZero())
		must.NoError(t, loaded.SetLabels(ctx, map[string]string{"more": "x"}))
		labels, err := c.CurrentLabels(ctx)
		must.NoError(t, err)
		must.Eq(t, "x", labels["more"])
		must.Eq(t, "test", labels["kind"])
		metrics, err := c.Metrics(ctx)
		must.NoError(t, err)
		must.False(t, c.OOMKilled(ctx))
		must.Positive(t, metrics.Pids)
		must.Positive(t, metrics.MemoryUsage)
		must.False(t, metrics.At.IsZero())

		must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
			text, _ := os.ReadFile(stdio.Stdout)
			return string(text) == "begun\n"
		}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
		must.NoError(t, c.Signal(ctx, syscall.SIGUSR1, false))
		exit, err := c.Wait(ctx)
		must.NoError(t, err)
		must.Eq(t, 42, exit.Code)
		must.False(t, exit.At.IsZero())
		status, err = loaded.Status(ctx)
		must.NoError(t, err)
		must.False(t, status.Running)
		must.Eq(t, 42, status.Exit.Code)

		for range 2 { // also where it is gone
			must.NoError(t, c.End(ctx))
			must.NoError(t, c.Remove(ctx))
		}
		_, err = r.Load(ctx, "life-1")
		must.ErrorIs(t, err, ErrNotFound)
		unloaded := r.Unloaded("life-1", "", nil, nil)
		must.ErrorIs(t, unloaded.SetLabels(ctx, map[string]string{"a": "b"}), ErrNotFound)
		must.ErrorIs(t, unloaded.Start(ctx, stdio), ErrNotFound)
		_, err = unloaded.CurrentLabels(ctx)
		must.ErrorIs(t, err, ErrNotFound)
		must.NoError(t, unloaded.Remove(ctx))
		must.Eq(t, nil, r.ofOurs(t))
	})
}

// TestAContainerOfNoProgram says so when it is started.
func TestAContainerOfNoProgram(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		c, stdio := made(t, r, "none-1", nil, "/no/such/program")
		err := c.Start(t.Context(), stdio)
		must.ErrorContains(t, err, "create process of container none-1")
		must.ErrorContains(t, err, "/no/such/program")
		must.False(t, Transient(err))
		must.NoError(t, c.Remove(t.Context()))
		must.Eq(t, nil, r.ofOurs(t))
	})
}

// TestAStartThatRunsOutOfMemorySaysSo: runc before 1.2 lies in the control group with a
// copy of itself until the program begins, which the kernel kills where memory is short.
func TestAStartThatRunsOutOfMemorySaysSo(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		c, stdio := made(t, r, "hungry-1", func(n *NewContainer) {
			n.Options = append(n.Options, oci.WithMemoryLimit(64<<20))
		}, "sleep", "60")
		err := c.Start(t.Context(), stdio, func(ctx context.Context) error {
			task, err := c.task(ctx)
			must.NoError(t, err)
			group := memoryGroup(t, task.Pid())
			for _, noSwap := range []string{"memory.swappiness", "memory.swap.max"} { // cgroup v1, and v2
				if _, err := os.Stat(filepath.Join(group, noSwap)); err == nil {
					must.NoError(t, os.WriteFile(filepath.Join(group, noSwap), []byte("0"), 0))
				}
			}
			must.Error(t, exec.CommandContext(ctx, "sh", "-c", `echo $$ >"$0" && exec tail /dev/zero`, filepath.Join(group, "cgroup.procs")).Run())
			return syscall.Kill(int(task.Pid()), syscall.SIGKILL)
		})
		must.ErrorIs(t, err, ErrOutOfMemory)
		must.ErrorContains(t, err, "start process of container hungry-1")
		must.NoError(t, c.End(t.Context()))
		must.NoError(t, c.Remove(t.Context()))
		must.Eq(t, nil, r.ofOurs(t))
	})
}

// TestRuncTellsThatMemoryIsShort when it is killed while it makes the container, of which
// containerd then knows nothing.
func TestRuncTellsThatMemoryIsShort(t *testing.T) {
	said := errors.New("runc create failed: unable to start container process: container init was OOM-killed (memory limit too low?)")
	must.ErrorIs(t, (&Container{}).outOfMemory(t.Context(), said), ErrOutOfMemory)
}

// memoryGroup is the control group that bounds a process's memory.
func memoryGroup(t *testing.T, pid uint32) string {
	t.Helper()
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	must.NoError(t, err)
	root, found := "/sys/fs/cgroup", ""
	for line := range strings.Lines(string(lines)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if parts[1] == "memory" {
			return filepath.Join(root, "memory", parts[2])
		}
		if parts[1] == "" {
			found = filepath.Join(root, parts[2])
		}
	}
	return found
}

// ofOurs names what containerd holds of this Runtime's, beside images.
func (r *Runtime) ofOurs(t *testing.T) []string {
	t.Helper()
	ctx := r.with(context.Background())
	var found []string
	must.NoError(t, r.client.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		found = append(found, "snapshot "+info.Name)
		return nil
	}, r.ownerFilter()))
	all, err := r.client.LeasesService().List(ctx, r.ownerFilter())
	must.NoError(t, err)
	for _, lease := range all {
		found = append(found, "lease "+lease.ID)
	}
	if records, err := r.client.SandboxStore().List(ctx, r.ownerFilter()); err == nil {
		for _, record := range records {
			found = append(found, "sandbox "+record.ID)
		}
	}
	return found
}

// TestContainersAreFoundByTheirLabels, and their users in the image.
func TestContainersAreFoundByTheirLabels(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		var user specs.User
		var capabilities *specs.LinuxCapabilities
		placed := ""
		look := func(root string, s *oci.Spec) error {
			user, capabilities = s.Process.User, s.Process.Capabilities
			text, err := os.ReadFile(filepath.Join(root, "etc", "image"))
			placed = string(text)
			return err
		}
		for _, id := range []string{"find-1", "find-2"} {
			made(t, r, id, func(n *NewContainer) { n.User, n.Groups, n.Place = "app", []string{"extra"}, look }, "true")
		}
		must.Eq(t, 1000, user.UID)
		must.SliceContains(t, user.AdditionalGids, 77)
		must.SliceEmpty(t, capabilities.Effective)
		must.SliceEmpty(t, capabilities.Permitted)
		must.SliceNotEmpty(t, capabilities.Bounding)
		must.Eq(t, "box", placed)

		ids := func(labels map[string]string) []string {
			found, err := r.Find(ctx, labels)
			must.NoError(t, err)
			var all []string
			for _, c := range found {
				all = append(all, c.ID)
			}
			return all
		}
		must.SliceContainsAll(t, []string{"find-1", "find-2"}, ids(map[string]string{"kind": "test"}))
		must.Eq(t, []string{"find-2"}, ids(map[string]string{"kind": "test", "id": "find-2"}))
		must.SliceEmpty(t, ids(map[string]string{"kind": "test", "id": "find-3"}))
		owned, err := r.Owned(ctx)
		must.NoError(t, err)
		must.Len(t, 2, owned)

		_, err = r.Create(ctx, NewContainer{ID: "find-1", Image: box(t, r, "box"), Runtime: "io.containerd.runc.v2"})
		must.Error(t, err, must.Sprint("there is one of this name"))
		for says, change := range map[string]func(*NewContainer){
			`user "ghost"`:         func(n *NewContainer) { n.User = "ghost" },
			`group_add ["ghosts"]`: func(n *NewContainer) { n.Groups = []string{"ghosts"} },
			"no place":             func(n *NewContainer) { n.Place = func(string, *oci.Spec) error { return io.ErrNoProgress } },
		} {
			n := NewContainer{ID: "refused", Image: box(t, r, "box"), Runtime: "io.containerd.runc.v2"}
			change(&n)
			_, err := r.Create(ctx, n)
			must.Error(t, err, must.Sprint(says))
			if says != "no place" {
				must.ErrorContains(t, err, says)
			}
		}
		for _, c := range owned {
			must.NoError(t, c.Remove(ctx))
		}
		must.Eq(t, nil, r.ofOurs(t))
	})
}

// TestExecOfARuntime: what a command writes, reads and returns, and what is left of it.
func TestExecOfARuntime(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		c, stdio := made(t, r, "exec-1", nil, "sleep", "1000")
		must.NoError(t, c.Start(ctx, stdio))
		var out, errs bytes.Buffer
		code, err := c.Exec(ctx, Exec{Command: []string{"sh", "-c", "cat; echo bad >&2; exit 3"}, Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errs})
		must.NoError(t, err)
		must.Eq(t, 3, code)
		must.Eq(t, "in\n", out.String())
		must.Eq(t, "bad\n", errs.String())
		out.Reset()
		resize := make(chan Size, 2)
		resize <- Size{Width: 70, Height: 20}
		resize <- Size{Width: 80, Height: 24}
		close(resize)
		code, err = c.Exec(ctx, Exec{Command: []string{"sh", "-c", `until test "$(stty size)" = "24 80"; do sleep 0.02; done; test -t 1 && echo terminal`}, Terminal: true, Stdout: &out, Resize: resize})
		must.NoError(t, err)
		must.Eq(t, 0, code)
		must.Eq(t, "terminal\r\n", out.String())
		_, err = c.Exec(ctx, Exec{})
		must.ErrorContains(t, err, "the command is empty")
		_, err = c.Exec(ctx, Exec{Command: []string{"/no/such"}, Stdout: io.Discard, Stderr: io.Discard})
		must.ErrorContains(t, err, `exec "/no/such" in container exec-1`)

		// One that its caller leaves is killed, and one whose caller died is found.
		leave, left := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := c.Exec(leave, Exec{Command: []string{"sleep", "1000"}, Stdout: io.Discard, Stderr: io.Discard})
			ended <- err
		}()
		running := func(n int) {
			t.Helper()
			must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
				is, err := c.Sessions(ctx)
				return err == nil && is == n
			}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
		}
		running(1)
		left()
		must.ErrorIs(t, <-ended, context.Canceled)
		running(0)
		for range 2 {
			go func() {
				_, err := c.Exec(ctx, Exec{Command: []string{"sleep", "1000"}, Stdout: io.Discard, Stderr: io.Discard})
				ended <- err
			}()
		}
		running(2)
		must.NoError(t, c.EndSessions(ctx))
		<-ended
		<-ended
		running(0)
		must.NoError(t, c.Signal(ctx, syscall.SIGKILL, true))
		exit, err := c.Wait(ctx)
		must.NoError(t, err)
		must.Eq(t, 137, exit.Code)
	})
}

// TestWhatAStartLeftIsCollected once it is old enough and has no container.
func TestWhatAStartLeftIsCollected(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := r.with(t.Context())
		c, _ := made(t, r, "kept", nil, "true")
		gone, _ := made(t, r, "gone", nil, "true")
		// Its snapshot stays, also where containerd collects its garbage just now.
		_, err := r.client.SnapshotService("overlayfs").Update(ctx, snapshots.Info{Name: gone.ID, Labels: map[string]string{"containerd.io/gc.root": "now"}}, "labels.containerd.io/gc.root")
		must.NoError(t, err)
		must.NoError(t, r.client.ContainerService().Delete(ctx, gone.ID))
		lease, err := r.client.LeasesService().Create(ctx, leases.WithID("dead"), leases.WithLabels(r.ownerLabels()))
		must.NoError(t, err)
		others, err := r.client.LeasesService().Create(ctx, leases.WithID("others"), leases.WithLabels(map[string]string{ownerLabel: "somebody"}))
		must.NoError(t, err)
		_, done, err := r.protect(ctx)
		must.NoError(t, err)
		before := r.ofOurs(t)
		for _, what := range []string{"snapshot gone", "snapshot kept", "lease " + lease.ID} {
			must.SliceContains(t, before, what)
		}
		ids := regexp.MustCompile(`^(kept|gone)$`)
		must.NoError(t, r.CollectLeftovers(ctx, ids, time.Now().Add(-time.Hour)))
		must.Eq(t, before, r.ofOurs(t), must.Sprint("it is not old enough"))
		must.NoError(t, r.CollectLeftovers(ctx, ids, time.Now().Add(time.Hour)))
		left := r.ofOurs(t)
		must.SliceNotContains(t, left, "snapshot gone")
		must.SliceNotContains(t, left, "lease dead")
		must.SliceNotContains(t, left, "sandbox gone")
		must.SliceContains(t, left, "snapshot kept")
		must.Len(t, 1, leasesIn(left), must.Sprint("that which this process holds"))
		done(nil)
		must.SliceEmpty(t, leasesIn(r.ofOurs(t)))
		must.NoError(t, c.Remove(ctx))
		must.Eq(t, nil, r.ofOurs(t))
		all, err := r.client.LeasesService().List(ctx)
		must.NoError(t, err)
		must.Eq(t, []leases.Lease{others}, all)
	})
}

func leasesIn(found []string) []string {
	var all []string
	for _, what := range found {
		if strings.HasPrefix(what, "lease ") {
			all = append(all, what)
		}
	}
	return all
}

// TestImagesAreCollected when they are ours, no container has them, and none used
// them lately.
func TestImagesAreCollected(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := r.with(t.Context())
		used, idle, touched := box(t, r, "box"), box(t, r, "idle"), box(t, r, "touched")
		c, _ := made(t, r, "user", nil, "true")
		must.Eq(t, used.Name, c.Image)
		must.True(t, idle.Managed())
		must.Eq(t, "", idle.Access())
		theirs, err := r.client.ImageService().Create(ctx, images.Image{Name: "example.test/theirs:1", Target: idle.handle.Target()})
		must.NoError(t, err)
		later := time.Now().Add(time.Hour)
		must.NoError(t, r.TouchImage(ctx, touched.Name, later.Add(time.Minute)))
		must.NoError(t, r.TouchImage(ctx, theirs.Name, later))
		must.ErrorIs(t, r.TouchImage(ctx, "example.test/none:1", later), ErrNotFound)

		removed, err := r.CollectImages(ctx, time.Now().Add(-time.Hour))
		must.NoError(t, err)
		must.SliceEmpty(t, removed)
		removed, err = r.CollectImages(ctx, later)
		must.NoError(t, err)
		must.Eq(t, []string{idle.Name}, removed)
		_, err = r.Image(ctx, idle.Name, "")
		must.ErrorIs(t, err, ErrNoImage)
		_, known := r.configs.get(idle.Digest.String() + " overlayfs")
		must.False(t, known, must.Sprint("it is forgotten"))
		for _, name := range []string{used.Name, touched.Name, theirs.Name} {
			image, err := r.Image(ctx, name, "")
			must.NoError(t, err)
			must.Eq(t, []string{"PATH=/bin"}, image.Config.Env)
		}
		is, err := r.client.ImageService().Get(ctx, theirs.Name)
		must.NoError(t, err)
		must.Eq(t, "", is.Labels[usedLabel], must.Sprint("it is not ours to label"))

		names, err := r.Snapshotters(ctx)
		must.NoError(t, err)
		must.SliceContains(t, names, "overlayfs")
		all, err := r.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
		must.NoError(t, err)
		for _, plugin := range all.Plugins {
			must.Eq(t, plugin.InitErr == nil, slices.Contains(names, plugin.ID), must.Sprint(plugin.ID))
		}
		runc, err := r.Runc(ctx)
		must.NoError(t, err)
		must.RegexMatch(t, regexp.MustCompile(`^\d+\.\d+`), runc.Version)
		must.True(t, filepath.IsAbs(runc.Path))
	})
}

func TestForgetDropsOneImageOnly(t *testing.T) {
	var c configs
	one, two := digest.FromString("one"), digest.FromString("two")
	for _, key := range []string{string(one) + " overlayfs", string(one) + " native", string(two) + " overlayfs"} {
		c.put(key, ispec.ImageConfig{User: key}, 1)
	}
	c.forget(one)
	must.MapLen(t, 1, c.all)
	left, known := c.get(string(two) + " overlayfs")
	must.True(t, known)
	must.Eq(t, string(two)+" overlayfs", left.User)
}

// TestSoManyConfigsAreRemembered: how many images there are is up to their authors.
func TestSoManyConfigsAreRemembered(t *testing.T) {
	var c configs
	c.put("large", ispec.ImageConfig{}, maxRememberedConfig+1)
	must.MapEmpty(t, c.all)
	for n := range 10 * maxConfigs {
		c.put(fmt.Sprint(n), ispec.ImageConfig{}, maxRememberedConfig)
		must.LessEq(t, maxConfigs, len(c.all))
	}
	_, known := c.get(fmt.Sprint(10*maxConfigs - 1))
	must.True(t, known)
}

// TestATaskHasTheImagesUser where it names none itself.
func TestATaskHasTheImagesUser(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		for id, row := range map[string]struct {
			image, task string
			code        int
		}{"none-named": {code: 0}, "image-named": {image: "app", code: 1}, "task-named": {image: "app", task: "root", code: 0}, "both-named": {image: "root", task: "app", code: 1}} {
			c, stdio := made(t, r, id, func(n *NewContainer) { n.User, n.Image.Config.User = row.task, row.image }, "sh", "-c", "test -w /etc/passwd")
			must.NoError(t, c.Start(t.Context(), stdio))
			exit, err := c.Wait(t.Context())
			must.NoError(t, err)
			must.Eq(t, row.code, exit.Code, must.Sprint(id))
		}
	})
}
