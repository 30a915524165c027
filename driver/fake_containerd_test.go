// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// fakeContainerd keeps containers and their processes in memory, as far as the driver asks
// for them, and fails the calls that a test names. What containerd really answers is the
// matter of the tests with one; those with this are of what the driver makes of a failure.
type fakeContainerd struct {
	mu         sync.Mutex
	containers map[string]*containersapi.Container
	processes  map[string]*tasktypes.Process
	// ended is closed, and replaced, when a process ends.
	ended chan struct{}
	// fails is what calls answer, by service and method, such as "Tasks/Kill".
	fails map[string]codes.Code
}

// noProcess is a number that the kernel gives to none.
const noProcess = 1 << 30

// startFake serves a fake containerd at a socket until the test ends.
func startFake(t *testing.T, socket string) *fakeContainerd {
	t.Helper()
	f := &fakeContainerd{containers: map[string]*containersapi.Container{}, processes: map[string]*tasktypes.Process{}, ended: make(chan struct{})}
	listener, err := net.Listen("unix", socket)
	must.NoError(t, err)
	server := grpc.NewServer(grpc.UnaryInterceptor(f.intercept))
	containersapi.RegisterContainersServer(server, fakeContainers{fakeContainerd: f})
	tasksapi.RegisterTasksServer(server, fakeTasks{fakeContainerd: f})
	namespacesapi.RegisterNamespacesServer(server, fakeNamespaces{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return f
}

func (f *fakeContainerd) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	name := path.Join(filepath.Ext(path.Dir(info.FullMethod))[1:], path.Base(info.FullMethod))
	f.mu.Lock()
	code, fails := f.fails[name]
	f.mu.Unlock()
	if fails {
		return nil, status.Error(code, name+" was to fail")
	}
	return handle(ctx, request)
}

// fail has some calls fail from now on, and no others.
func (f *fakeContainerd) fail(code codes.Code, calls ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = map[string]codes.Code{}
	for _, call := range calls {
		f.fails[call] = code
	}
}

// add makes a container of the driver's with a process that runs.
func (f *fakeContainerd) add(id string, labels map[string]string, record []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id] = &containersapi.Container{
		ID: id, Image: "image", Labels: labels, CreatedAt: timestamppb.Now(), UpdatedAt: timestamppb.Now(),
		Extensions: map[string]*anypb.Any{"io.nomad-gpu.record": {TypeUrl: "nomad-gpu.io/record/v1", Value: record}},
	}
	f.processes[id] = &tasktypes.Process{ID: id, Pid: noProcess, Status: tasktypes.Status_RUNNING}
}

// end ends a process; with forget, nothing is known of it afterwards.
func (f *fakeContainerd) end(id string, code uint32, forget bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.processes[id]; p != nil && p.Status == tasktypes.Status_RUNNING {
		p.Status, p.ExitStatus, p.ExitedAt = tasktypes.Status_STOPPED, code, timestamppb.Now()
	}
	if forget {
		delete(f.processes, id)
	}
	close(f.ended)
	f.ended = make(chan struct{})
}

// holds names the containers that there are.
func (f *fakeContainerd) holds() (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.containers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

type fakeContainers struct {
	containersapi.UnimplementedContainersServer
	*fakeContainerd
}

func (f fakeContainers) List(_ context.Context, r *containersapi.ListContainersRequest) (*containersapi.ListContainersResponse, error) {
	matches, err := filters.ParseAll(r.Filters...)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &containersapi.ListContainersResponse{}
	for _, c := range f.containers {
		if matches.Match(filters.AdapterFunc(func(field []string) (string, bool) {
			value, found := c.Labels[field[len(field)-1]]
			return value, found
		})) {
			answer.Containers = append(answer.Containers, c)
		}
	}
	return answer, nil
}

func (f fakeContainers) Get(_ context.Context, r *containersapi.GetContainerRequest) (*containersapi.GetContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[r.ID]; c != nil {
		return &containersapi.GetContainerResponse{Container: c}, nil
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

// Update changes labels, which is all that the driver asks for.
func (f fakeContainers) Update(_ context.Context, r *containersapi.UpdateContainerRequest) (*containersapi.UpdateContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.Container.ID]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	c = proto.Clone(c).(*containersapi.Container) // others may read the one before
	maps.Copy(c.Labels, r.Container.Labels)
	f.containers[c.ID] = c
	return &containersapi.UpdateContainerResponse{Container: c}, nil
}

func (f fakeContainers) Delete(_ context.Context, r *containersapi.DeleteContainerRequest) (*emptypb.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, r.ID)
	return &emptypb.Empty{}, nil
}

type fakeNamespaces struct {
	namespacesapi.UnimplementedNamespacesServer
}

func (fakeNamespaces) Get(_ context.Context, r *namespacesapi.GetNamespaceRequest) (*namespacesapi.GetNamespaceResponse, error) {
	return &namespacesapi.GetNamespaceResponse{Namespace: &namespacesapi.Namespace{Name: r.Name}}, nil
}

type fakeTasks struct {
	tasksapi.UnimplementedTasksServer
	*fakeContainerd
}

// process is a copy of one, and what is closed when the next ends.
func (f fakeTasks) process(id string) (*tasktypes.Process, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.processes[id]
	if p == nil {
		return nil, nil, status.Error(codes.NotFound, "no such process")
	}
	return &tasktypes.Process{ID: p.ID, Pid: p.Pid, Status: p.Status, ExitStatus: p.ExitStatus, ExitedAt: p.ExitedAt}, f.ended, nil
}

func (f fakeTasks) Get(_ context.Context, r *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	p, _, err := f.process(r.ContainerID)
	return &tasksapi.GetResponse{Process: p}, err
}

func (f fakeTasks) ListPids(_ context.Context, r *tasksapi.ListPidsRequest) (*tasksapi.ListPidsResponse, error) {
	_, _, err := f.process(r.ContainerID)
	return &tasksapi.ListPidsResponse{}, err
}

// Kill ends a process by any signal.
func (f fakeTasks) Kill(_ context.Context, r *tasksapi.KillRequest) (*emptypb.Empty, error) {
	if _, _, err := f.process(r.ContainerID); err != nil {
		return nil, err
	}
	f.end(r.ContainerID, 128+r.Signal, false)
	return &emptypb.Empty{}, nil
}

func (f fakeTasks) Wait(ctx context.Context, r *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	for {
		p, ended, err := f.process(r.ContainerID)
		if err != nil {
			return nil, err
		}
		if p.Status == tasktypes.Status_STOPPED {
			return &tasksapi.WaitResponse{ExitStatus: p.ExitStatus, ExitedAt: p.ExitedAt}, nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Delete refuses a process that runs, as containerd does.
func (f fakeTasks) Delete(_ context.Context, r *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error) {
	p, _, err := f.process(r.ContainerID)
	if err != nil {
		return nil, err
	}
	if p.Status == tasktypes.Status_RUNNING {
		return nil, status.Error(codes.FailedPrecondition, "the process runs")
	}
	f.end(r.ContainerID, 0, true)
	return &tasksapi.DeleteResponse{ID: p.ID, ExitStatus: p.ExitStatus, ExitedAt: p.ExitedAt}, nil
}

// boxLease is the lease of the task that runs beside a fake containerd.
var boxLease = gpu.LeaseID("alloc", "web")

// besideFake is a driver without a background, beside a fake containerd in which a task
// of its runs. Its directory is a test's to spoil.
func besideFake(t *testing.T) (*Driver, environment, *fakeContainerd, *drivers.TaskConfig) {
	t.Helper()
	d, env := alone(t)
	dir, err := os.MkdirTemp("", "f") // that of a test may be too long for a socket
	must.NoError(t, err)
	socket := filepath.Join(dir, "s")
	fake := startFake(t, socket)
	client, err := runtime.New(runtime.Config{Socket: socket, Namespace: testNamespace, Owner: env.settings.StateDir})
	must.NoError(t, err)
	env.runtime = client
	env.settings.GCGrace = time.Minute
	d.use(env)
	cfg := &drivers.TaskConfig{ID: "task", Name: "web", AllocID: "alloc", NodeID: "node"}
	lease := gpu.Lease{ID: boxLease, AllocID: "alloc", Task: "web", Container: "box", Phase: gpu.PhaseRunning, StartedAt: time.Now(), Holdings: []gpu.Holding{{UUID: gpuA}}}
	must.NoError(t, env.state.WriteLease(lease))
	r := record.Record{Version: record.Version, StartedAt: lease.StartedAt, Lease: lease}
	text, err := json.Marshal(r)
	must.NoError(t, err)
	labels, err := record.Labels(cfg, nil)
	must.NoError(t, err)
	labels["io.nomad-gpu.owner"] = env.settings.StateDir
	fake.add("box", labels, text)
	must.NoError(t, d.recordTask(env.runtime.Unloaded("box", "image", labels, text), r))
	return d, env, fake, cfg
}

// hear makes a driver's log readable: what it says where there is none to return an error to.
func hear(d *Driver) (said func() string) {
	var mu sync.Mutex
	var text strings.Builder
	d.logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &text, Mutex: &mu})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}
