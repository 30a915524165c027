// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	introspectionservice "github.com/containerd/containerd/v2/core/introspection"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// memory is a containerd in memory, as far as the Runtime asks for it, which fails the calls
// that a test names. What containerd really answers is the matter of the tests with one;
// those with this are of what is made of an answer that it seldom gives.
type memory struct {
	mu    sync.Mutex
	fails map[string][]error // what the next calls answer, by service and method
	asked []string

	containers map[string]containers.Container
	snapshots  map[string]map[string]snapshots.Info // by snapshotter
	images     map[string]images.Image
	leases     map[string]leases.Lease
	deleted    []leases.DeleteOptions
	sandboxes  map[string]sandbox.Sandbox
	tasks      *memoryTasks
	store      *memoryStore
}

// inMemory is a Runtime beside a memory of two snapshotters.
func inMemory(t *testing.T) (*Runtime, *memory) {
	t.Helper()
	store, err := local.NewStore(t.TempDir())
	must.NoError(t, err)
	m := &memory{
		fails: map[string][]error{}, containers: map[string]containers.Container{}, images: map[string]images.Image{},
		snapshots: map[string]map[string]snapshots.Info{"one": {}, "two": {}},
		leases:    map[string]leases.Lease{}, sandboxes: map[string]sandbox.Sandbox{},
	}
	m.tasks, m.store = &memoryTasks{memory: m}, &memoryStore{Store: store, memory: m}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	r := &Runtime{config: Config{Namespace: "memory", Owner: "owner", Snapshotter: "one"}, log: logrus.NewEntry(logger)}
	r.client, err = client.New("", client.WithDefaultNamespace("memory"), client.WithDefaultRuntime("io.containerd.runc.v2"), client.WithServices(
		client.WithContainerStore(memoryContainers{memory: m}), client.WithImageStore(memoryImages{memory: m}), client.WithLeasesService(memoryLeases{memory: m}),
		client.WithSandboxStore(memorySandboxes{memory: m}), client.WithIntrospectionService(memoryPlugins{memory: m}), client.WithTaskClient(m.tasks),
		client.WithContentStore(m.store), client.WithDiffService(unpacker{r}),
		client.WithSnapshotters(map[string]snapshots.Snapshotter{"one": memorySnapshots{memory: m, name: "one"}, "two": memorySnapshots{memory: m, name: "two"}}),
	))
	must.NoError(t, err)
	return r, m
}

// answer is what a call answers that a test named, and nil for others.
func (m *memory) answer(call string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, call)
	if next := m.fails[call]; len(next) > 0 {
		m.fails[call] = next[1:]
		return next[0]
	}
	return nil
}

// grpc is answer, as a connection gives it.
func (m *memory) grpc(call string) error { return errgrpc.ToGRPC(m.answer(call)) }

// times is how often a call was made.
func (m *memory) times(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := 0
	for _, made := range m.asked {
		if made == call {
			count++
		}
	}
	return count
}

type memoryContainers struct {
	containers.Store
	*memory
}

func (m memoryContainers) Get(_ context.Context, id string) (containers.Container, error) {
	if err := m.answer("containers.Get"); err != nil {
		return containers.Container{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.containers[id]; ok {
		return c, nil
	}
	return containers.Container{}, errdefs.ErrNotFound
}

func (m memoryContainers) Create(_ context.Context, c containers.Container) (containers.Container, error) {
	if err := m.answer("containers.Create"); err != nil {
		return containers.Container{}, err
	}
	m.containers[c.ID] = c
	return c, nil
}

func (m memoryContainers) List(context.Context, ...string) (all []containers.Container, err error) {
	for _, c := range m.containers {
		all = append(all, c)
	}
	return all, m.answer("containers.List")
}

func (m memoryContainers) Delete(_ context.Context, id string) error {
	delete(m.containers, id)
	return m.answer("containers.Delete")
}

type memorySnapshots struct {
	snapshots.Snapshotter
	*memory
	name string
}

func (m memorySnapshots) Prepare(_ context.Context, key, _ string, _ ...snapshots.Opt) ([]mount.Mount, error) {
	if err := m.answer("snapshots.Prepare"); err != nil {
		return nil, err
	}
	if _, ok := m.snapshots[m.name][key]; ok {
		return nil, errdefs.ErrAlreadyExists
	}
	m.snapshots[m.name][key] = snapshots.Info{Name: key}
	return nil, nil
}

// Mounts are none: what is mounted is an empty directory.
func (m memorySnapshots) Mounts(context.Context, string) ([]mount.Mount, error) {
	return nil, m.answer("snapshots.Mounts")
}

func (m memorySnapshots) Remove(_ context.Context, key string) error {
	if err := m.answer("snapshots.Remove"); err != nil {
		return err
	}
	if _, ok := m.snapshots[m.name][key]; !ok {
		return errdefs.ErrNotFound
	}
	delete(m.snapshots[m.name], key)
	return nil
}

func (m memorySnapshots) Walk(ctx context.Context, each snapshots.WalkFunc, _ ...string) error {
	for _, info := range m.snapshots[m.name] {
		if err := each(ctx, info); err != nil {
			return err
		}
	}
	return m.answer("snapshots.Walk")
}

type memoryImages struct {
	images.Store
	*memory
}

func (m memoryImages) Get(_ context.Context, name string) (images.Image, error) {
	image, ok := m.images[name]
	if !ok {
		return images.Image{}, errdefs.ErrNotFound
	}
	return image, m.answer("images.Get")
}

func (m memoryImages) Update(_ context.Context, image images.Image, _ ...string) (images.Image, error) {
	if err := m.answer("images.Update"); err != nil {
		return images.Image{}, err
	}
	m.images[image.Name] = image
	return image, nil
}

func (m memoryImages) Delete(_ context.Context, name string, _ ...images.DeleteOpt) error {
	if err := m.answer("images.Delete"); err != nil {
		return err
	}
	if _, ok := m.images[name]; !ok {
		return errdefs.ErrNotFound
	}
	delete(m.images, name)
	return nil
}

type memoryLeases struct {
	leases.Manager
	*memory
}

func (m memoryLeases) Create(_ context.Context, options ...leases.Opt) (leases.Lease, error) {
	var lease leases.Lease
	for _, option := range options {
		if err := option(&lease); err != nil {
			return lease, err
		}
	}
	if err := m.answer("leases.Create"); err != nil {
		return leases.Lease{}, err
	}
	m.leases[lease.ID] = lease
	return lease, nil
}

func (m memoryLeases) Delete(ctx context.Context, lease leases.Lease, options ...leases.DeleteOpt) error {
	var how leases.DeleteOptions
	for _, option := range options {
		if err := option(ctx, &how); err != nil {
			return err
		}
	}
	m.deleted = append(m.deleted, how)
	if err := m.answer("leases.Delete"); err != nil {
		return err
	}
	delete(m.leases, lease.ID)
	return nil
}

func (m memoryLeases) List(context.Context, ...string) (all []leases.Lease, err error) {
	for _, lease := range m.leases {
		all = append(all, lease)
	}
	return all, m.answer("leases.List")
}

type memorySandboxes struct {
	sandbox.Store
	*memory
}

func (m memorySandboxes) Create(_ context.Context, record sandbox.Sandbox) (sandbox.Sandbox, error) {
	m.sandboxes[record.ID] = record
	return record, m.answer("sandboxes.Create")
}

func (m memorySandboxes) List(context.Context, ...string) (all []sandbox.Sandbox, err error) {
	for _, record := range m.sandboxes {
		all = append(all, record)
	}
	return all, m.answer("sandboxes.List")
}

func (m memorySandboxes) Delete(_ context.Context, id string) error {
	delete(m.sandboxes, id)
	return m.answer("sandboxes.Delete")
}

type memoryPlugins struct {
	introspectionservice.Service
	*memory
}

// Plugins are its snapshotters, in no order, and no others.
func (m memoryPlugins) Plugins(context.Context, ...string) (*introspection.PluginsResponse, error) {
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range m.snapshots {
			if !yield(name) {
				return
			}
		}
	})
	slices.Reverse(names)
	answer := &introspection.PluginsResponse{}
	for _, name := range names {
		answer.Plugins = append(answer.Plugins, &introspection.Plugin{ID: name})
	}
	return answer, m.answer("plugins")
}

// memoryStore is a content store, some of whose calls fail, and which counts the blobs that
// are open.
type memoryStore struct {
	content.Store
	memory *memory
	open   int
}

func (s *memoryStore) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if err := s.memory.answer("content.Info"); err != nil {
		return content.Info{}, err
	}
	return s.Store.Info(ctx, d)
}

func (s *memoryStore) ReaderAt(ctx context.Context, desc ispec.Descriptor) (content.ReaderAt, error) {
	if err := s.memory.answer("content.ReaderAt"); err != nil {
		return nil, err
	}
	reader, err := s.Store.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	s.open++
	return &memoryReader{reader, s}, nil
}

// Update keeps labels, which the store itself does not.
func (s *memoryStore) Update(_ context.Context, info content.Info, _ ...string) (content.Info, error) {
	return info, s.memory.answer("content.Update")
}

type memoryReader struct {
	content.ReaderAt
	store *memoryStore
}

func (r *memoryReader) Close() error {
	r.store.open--
	return r.ReaderAt.Close()
}

// memoryTasks is the service of one process.
type memoryTasks struct {
	tasks.TasksClient // any other call is a mistake of the test
	*memory
	get     tasks.GetResponse
	pids    tasks.ListPidsResponse
	wait    tasks.WaitResponse
	metrics tasks.MetricsResponse
	killed  []*tasks.KillRequest
}

func (m *memoryTasks) Get(context.Context, *tasks.GetRequest, ...grpc.CallOption) (*tasks.GetResponse, error) {
	return &m.get, m.grpc("tasks.Get")
}

func (m *memoryTasks) ListPids(context.Context, *tasks.ListPidsRequest, ...grpc.CallOption) (*tasks.ListPidsResponse, error) {
	return &m.pids, m.grpc("tasks.ListPids")
}

func (m *memoryTasks) Wait(context.Context, *tasks.WaitRequest, ...grpc.CallOption) (*tasks.WaitResponse, error) {
	return &m.wait, m.grpc("tasks.Wait")
}

func (m *memoryTasks) Metrics(context.Context, *tasks.MetricsRequest, ...grpc.CallOption) (*tasks.MetricsResponse, error) {
	return &m.metrics, m.grpc("tasks.Metrics")
}

func (m *memoryTasks) Create(context.Context, *tasks.CreateTaskRequest, ...grpc.CallOption) (*tasks.CreateTaskResponse, error) {
	return &tasks.CreateTaskResponse{}, m.grpc("tasks.Create")
}

func (m *memoryTasks) Start(context.Context, *tasks.StartRequest, ...grpc.CallOption) (*tasks.StartResponse, error) {
	return &tasks.StartResponse{}, m.grpc("tasks.Start")
}

func (m *memoryTasks) Kill(_ context.Context, r *tasks.KillRequest, _ ...grpc.CallOption) (*emptypb.Empty, error) {
	m.killed = append(m.killed, r)
	return &emptypb.Empty{}, m.grpc("tasks.Kill")
}

func (m *memoryTasks) Delete(context.Context, *tasks.DeleteTaskRequest, ...grpc.CallOption) (*tasks.DeleteResponse, error) {
	return &tasks.DeleteResponse{}, m.grpc("tasks.Delete")
}
