// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// ErrNotFound means that containerd knows no such container, or that no process
// of it exists.
var ErrNotFound = errors.New("not found in containerd")

// recordURL marks the driver's own record in a container.
const (
	recordExtension = "io.nomad-gpu.record"
	recordURL       = "nomad-gpu.io/record/v1"
)

// NewContainer says what container to make.
type NewContainer struct {
	ID    string
	Image Image
	// Options make the OCI specification; User comes after them, then CDI, and
	// last Place, which is shown the container's root directory, as its image left
	// it, and may change where mounts lie.
	Options []oci.SpecOpts
	User    string
	Groups  []string
	CDI     oci.SpecOpts
	Place   func(root string, s *oci.Spec) error
	Labels  map[string]string
	// Record is kept with the container, of any size and for any release to read.
	Record []byte
	// Runtime is containerd's name of the runtime.
	Runtime string
}

// Container is one container, with or without a process.
type Container struct {
	ID string
	// Image is the name of its image.
	Image     string
	Labels    map[string]string
	Record    []byte
	CreatedAt time.Time

	runtime *Runtime
	mu      sync.Mutex
	known   client.Container // nil until containerd was asked
}

// Unloaded is a container that is looked up only when it is used, because
// containerd is away now.
func (r *Runtime) Unloaded(id, image string, labels map[string]string, record []byte) *Container {
	return &Container{ID: id, Image: image, Labels: labels, Record: record, runtime: r}
}

// handle returns containerd's own handle. It returns ErrNotFound for a container
// that is not there.
func (c *Container) handle(ctx context.Context) (client.Container, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known != nil {
		return c.known, nil
	}
	known, err := c.runtime.client.LoadContainer(ctx, c.ID)
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", c.ID, notFound(err))
	}
	c.known = known
	return known, nil
}

// task returns containerd's handle of the container's process. It returns ErrNotFound
// where there is none.
func (c *Container) task(ctx context.Context) (client.Task, error) {
	handle, err := c.handle(ctx)
	if err != nil {
		return nil, err
	}
	task, err := handle.Task(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("find process of container %s: %w", c.ID, notFound(err))
	}
	return task, nil
}

// CurrentLabels asks containerd for the container's labels as they are now.
func (c *Container) CurrentLabels(ctx context.Context) (map[string]string, error) {
	handle, err := c.handle(ctx)
	if err != nil {
		return nil, err
	}
	labels, err := handle.Labels(ctx)
	if err != nil {
		return nil, fmt.Errorf("read labels of container %s: %w", c.ID, notFound(err))
	}
	return labels, nil
}

// Create makes a container and its snapshot. Nothing runs yet.
func (r *Runtime) Create(ctx context.Context, n NewContainer) (*Container, error) {
	options := append(slices.Clone(n.Options), withRootfs(n))
	// The client would take a lease of its own, which cannot be told from
	// others' when this process dies.
	ctx, done, err := r.protect(r.with(ctx))
	if err != nil {
		return nil, err
	}
	defer done(nil)
	if err := r.createSandbox(ctx, n); err != nil {
		return nil, err
	}
	handle, err := r.newContainer(ctx, n, options)
	if errdefs.IsAlreadyExists(err) {
		// A start that was cut off between snapshot and container.
		if err = r.removeSnapshot(ctx, n.Image.snapshotter, n.ID); err == nil {
			handle, err = r.newContainer(ctx, n, options)
		}
	}
	if leftDirectory(err) {
		handle, err = r.newContainer(ctx, n, options)
	}
	if errdefs.IsNotFound(err) {
		// The image's layers were removed, and the image alone came back.
		r.configs.forget(n.Image.Digest)
		if err = r.unpack(ctx, n.Image.handle, n.Image.snapshotter); err == nil {
			handle, err = r.newContainer(ctx, n, options)
		}
	}
	if err != nil {
		// The snapshot is made before the container is; it must not stay.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("create container %s: %w", n.ID, err),
			r.removeSnapshot(cleanup, n.Image.snapshotter, n.ID), r.removeSandbox(cleanup, n.ID))
	}
	return r.wrap(ctx, handle), nil
}

func (r *Runtime) newContainer(ctx context.Context, n NewContainer, options []oci.SpecOpts) (client.Container, error) {
	record := &anypb.Any{TypeUrl: recordURL, Value: n.Record}
	return r.client.NewContainer(ctx, n.ID,
		client.WithImage(n.Image.handle),
		client.WithSnapshotter(n.Image.snapshotter),
		client.WithNewSnapshot(n.ID, n.Image.handle, snapshots.WithLabels(r.ownerLabels())),
		client.WithRuntime(n.Runtime, nil),
		client.WithContainerLabels(r.ownedLabels(n.Labels)),
		func(_ context.Context, _ *client.Client, c *containers.Container) error {
			c.Extensions = map[string]typeurl.Any{recordExtension: record}
			return nil
		},
		client.WithNewSpec(options...),
	)
}

// cleanupTimeout bounds the cleanup after a failure or a canceled call.
const cleanupTimeout = 20 * time.Second

func (r *Runtime) removeSnapshot(ctx context.Context, snapshotter, key string) error {
	if _, err := r.client.ContainerService().Get(ctx, key); err == nil {
		return nil // an existing container owns it
	}
	err := r.client.SnapshotService(snapshotter).Remove(ctx, key)
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("remove snapshot %s: %w", key, err)
}

// userOptions choose the user and its groups from the image's own files. Only
// root gets effective capabilities, as an execve would have it.
func userOptions(n NewContainer) []oci.SpecOpts {
	user := n.User
	if user == "" {
		user = n.Image.Config.User
	}
	var options []oci.SpecOpts
	if user != "" {
		options = append(options, named(fmt.Sprintf("user %q", user), oci.WithUser(user)), func(ctx context.Context, c oci.Client, container *containers.Container, s *oci.Spec) error {
			return oci.WithAdditionalGIDs(fmt.Sprint(s.Process.User.UID))(ctx, c, container, s)
		})
	}
	if len(n.Groups) > 0 {
		options = append(options, named(fmt.Sprintf("group_add %q", n.Groups), oci.WithAppendAdditionalGroups(n.Groups...)))
	}
	return append(options, func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if s.Process.User.UID != 0 {
			caps := s.Process.Capabilities
			caps.Effective, caps.Permitted, caps.Inheritable, caps.Ambient = nil, nil, nil, nil
		}
		return nil
	})
}

// Load returns a container by its ID, or ErrNotFound.
func (r *Runtime) Load(ctx context.Context, id string) (*Container, error) {
	handle, err := r.client.LoadContainer(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", id, notFound(err))
	}
	return r.wrap(ctx, handle), nil
}

// Owned returns the containers that the driver made, with this process or an
// earlier one, for whatever node it served then.
func (r *Runtime) Owned(ctx context.Context) ([]*Container, error) {
	return r.Find(ctx, r.ownerLabels())
}

// Find returns the containers that carry all the labels.
func (r *Runtime) Find(ctx context.Context, labels map[string]string) ([]*Container, error) {
	var filter []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		filter = append(filter, fmt.Sprintf("labels.%q==%q", key, labels[key]))
	}
	handles, err := r.client.Containers(ctx, strings.Join(filter, ","))
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var all []*Container
	for _, handle := range handles {
		all = append(all, r.wrap(ctx, handle))
	}
	return all, nil
}

func (r *Runtime) wrap(ctx context.Context, handle client.Container) *Container {
	info := infoOf(ctx, handle)
	c := &Container{ID: handle.ID(), Image: info.Image, Labels: info.Labels, CreatedAt: info.CreatedAt, runtime: r, known: handle}
	if record, ok := info.Extensions[recordExtension]; ok {
		c.Record = record.GetValue()
	}
	return c
}

// infoOf is what containerd said of a container when it was asked for the handle.
func infoOf(ctx context.Context, handle client.Container) containers.Container {
	info, _ := handle.Info(ctx, client.WithoutRefreshedMetadata) // from memory, which cannot fail
	return info
}

// Stdio is where a container's output goes: pipes or files of the host, opened
// by containerd's shim itself, so that no output passes through this process
// and none is lost when it dies. Empty for nowhere.
type Stdio struct {
	Stdout, Stderr string
	Terminal       bool
}

func (s Stdio) creator(string) (cio.IO, error) { return stdioPaths(s), nil }

// stdioPaths implements containerd's IO for paths that the caller owns.
type stdioPaths Stdio

func (s stdioPaths) Config() cio.Config {
	if s.Terminal {
		return cio.Config{Terminal: true, Stdout: s.Stdout}
	}
	return cio.Config{Stdout: s.Stdout, Stderr: s.Stderr}
}
func (stdioPaths) Cancel()      {}
func (stdioPaths) Wait()        {}
func (stdioPaths) Close() error { return nil }

// Start runs the container's process. It calls before once its control group is there
// and nothing of it has run.
func (c *Container) Start(ctx context.Context, stdio Stdio, before ...func(context.Context) error) error {
	handle, err := c.handle(ctx)
	if err != nil {
		return err
	}
	task, err := handle.NewTask(ctx, stdio.creator)
	if err != nil {
		return fmt.Errorf("create process of container %s: %w", c.ID, c.outOfMemory(ctx, lostShim(err)))
	}
	for _, do := range before {
		if err := do(ctx); err != nil {
			return err
		}
	}
	err = task.Start(ctx)
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", errShimLost, err) // it was there a moment ago
	}
	if err != nil {
		return fmt.Errorf("start process of container %s: %w", c.ID, c.outOfMemory(ctx, lostShim(err)))
	}
	return nil
}

// ErrOutOfMemory means that the kernel killed runc at the container's memory limit, before
// the program began.
var ErrOutOfMemory = errors.New("OOM Killed before the program began: the memory limit has to hold runc too, which before release 1.2 can take more than 16 MiB")

// outOfMemory marks the error of a start that ended so. When it was runc's own work, runc
// tells; afterwards containerd only says that the process has ended.
func (c *Container) outOfMemory(ctx context.Context, err error) error {
	if strings.Contains(err.Error(), "OOM-killed") || c.OOMKilled(ctx) {
		return fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	}
	return err
}

// Exit is how a container's process ended.
type Exit struct {
	// Code is 128 plus the signal for a process that a signal ended.
	Code int
	At   time.Time
	// OOMKilled is for whoever asks OOMKilled; containerd's exit does not tell.
	OOMKilled bool
}

// Status is what containerd says about a container's process now.
type Status struct {
	Running bool
	PID     int
	// Exit is valid for a process that has ended.
	Exit Exit
}

// ErrNotStarted means that a container's process was made and never started.
var ErrNotStarted = fmt.Errorf("its process was never started: %w", ErrNotFound)

// Status returns ErrNotFound for a container whose process containerd does not
// know: it was never made, or its shim and record are gone.
func (c *Container) Status(ctx context.Context) (Status, error) {
	task, err := c.task(ctx)
	if err != nil {
		return Status{}, err
	}
	status, err := task.Status(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("inspect process of container %s: %w", c.ID, notFound(err))
	}
	switch status.Status {
	case client.Stopped:
		return Status{Exit: Exit{Code: int(status.ExitStatus), At: status.ExitTime}}, nil
	case client.Created:
		return Status{}, fmt.Errorf("inspect container %s: %w", c.ID, ErrNotStarted)
	}
	return Status{Running: true, PID: int(task.Pid())}, nil
}

// Wait blocks until the process has ended, also through a time without containerd
// where the shim can be asked. An error says that nothing is known; the process
// may well be running.
func (c *Container) Wait(ctx context.Context) (Exit, error) {
	task, err := c.task(ctx)
	if err != nil {
		return Exit{}, err
	}
	socket := shimSocket(task.Pid())
	end, err := c.runtime.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: c.ID})
	if err == nil {
		return Exit{Code: int(end.ExitStatus), At: end.ExitedAt.AsTime()}, nil
	}
	if ctx.Err() != nil {
		return Exit{}, ctx.Err()
	}
	if socket != "" {
		exit, shimErr := c.waitAtShim(ctx, socket)
		if shimErr == nil {
			return exit, nil
		}
		err = errors.Join(err, shimErr)
	}
	return Exit{}, fmt.Errorf("wait for container %s: %w", c.ID, err)
}

// Signal sends a signal to the container's first process, or to all of them.
func (c *Container) Signal(ctx context.Context, signal syscall.Signal, all bool) error {
	task, err := c.task(ctx)
	if err != nil {
		return err
	}
	var options []client.KillOpts
	if all {
		options = append(options, client.WithKillAll)
	}
	if err := task.Kill(ctx, signal, options...); err != nil {
		return fmt.Errorf("send signal %d to container %s: %w", signal, c.ID, notFound(lostShim(err)))
	}
	return nil
}

// SetLabels adds labels to the container.
func (c *Container) SetLabels(ctx context.Context, labels map[string]string) error {
	handle, err := c.handle(ctx)
	if err != nil {
		return err
	}
	if _, err := handle.SetLabels(ctx, labels); err != nil {
		return fmt.Errorf("label container %s: %w", c.ID, notFound(err))
	}
	return nil
}

// notFound marks containerd's own "not found" as ours.
func notFound(err error) error {
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}
