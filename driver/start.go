package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// appArmorProfile is the default profile's name, on hosts with AppArmor.
const appArmorProfile = "nomad-gpu-default"

// startTimeout bounds what containerd is asked for when a task starts, apart
// from the image.
const startTimeout = 2 * time.Minute

// StartTask runs a task. Whatever fails leaves nothing behind. A start that was
// begun before, by a process that died, is taken up where it is: Nomad asks again
// with the same ID, and the task must not run twice.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if _, err := d.tasks.get(cfg.ID); err == nil {
		return nil, nil, fmt.Errorf("task %q is already started", cfg.ID)
	}
	earlier, err := d.earlier(cfg)
	if err != nil {
		return nil, nil, recoverable(err)
	}
	t, err := d.begun(cfg, earlier)
	if t == nil && err == nil {
		t, err = d.begin(cfg, earlier)
	}
	if err != nil {
		return nil, nil, recoverable(err)
	}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config, handle.State = cfg, drivers.TaskStateRunning
	if err := handle.SetDriverState(handleState{ContainerID: t.container.ID, StartedAt: t.record.StartedAt}); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("encode task handle: %w", err), d.discard(t))
	}
	return handle, t.record.Network, nil
}

// earlier returns the containers that there are of a task of an allocation: of
// this start, of one that died half-way, or of a run that could not be recovered.
func (d *Driver) earlier(cfg *drivers.TaskConfig) ([]*runtime.Container, error) {
	_, client, _, err := d.parts()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
	defer cancel()
	return client.Find(ctx, map[string]string{labelNode: cfg.NodeID, labelAlloc: cfg.AllocID, labelTask: cfg.Name})
}

// begun takes up a task whose process an earlier attempt of the same start ran,
// whether it still runs or not. It returns nil where there is none.
func (d *Driver) begun(cfg *drivers.TaskConfig, earlier []*runtime.Container) (*task, error) {
	for _, c := range earlier {
		if c.Labels[labelTaskID] != cfg.ID {
			continue
		}
		r, err := recordOf(c)
		if err != nil {
			return nil, err
		}
		err = d.resume(cfg, c, r)
		if errors.Is(err, runtime.ErrNotFound) {
			continue // it never ran
		}
		if err != nil {
			return nil, err
		}
		d.logger.Info("a start that was begun before is taken up", "task_id", cfg.ID, "container", c.ID)
		return d.tasks.get(cfg.ID)
	}
	return nil, nil
}

// begin starts a task anew.
func (d *Driver) begin(cfg *drivers.TaskConfig, earlier []*runtime.Container) (*task, error) {
	plan, err := d.plan(cfg)
	if err != nil {
		return nil, err
	}
	d.failpoint("planned")
	output := newOutputs(cfg)
	defer output.release()
	// One that cannot be removed keeps its lease, and with it the GPU.
	if output.pipesAlive, err = d.removeEarlier(cfg, earlier); err != nil {
		return nil, err
	}
	lease := plan.record.Lease
	if err := d.leases.claim(lease); err != nil {
		return nil, structs.NewRecoverableError(err, true)
	}
	defer d.leases.settle(lease)
	d.failpoint("claimed")
	t, err := d.launch(plan, output)
	if errors.Is(err, errNotRemoved) {
		return nil, err // with its lease, which the reaper ends when it has removed the rest
	}
	if err != nil {
		return nil, errors.Join(err, d.leases.end(lease, time.Now()))
	}
	d.failpoint("started")
	if len(plan.share.Holdings) > 0 {
		d.emit(cfg, "GPU share: "+describeShare(plan.share), nil)
	}
	return t, nil
}

// handleState is what Nomad keeps for us. Containers are found by label, so it
// only saves a search.
type handleState struct {
	ContainerID string
	StartedAt   time.Time
}

// startPlan is a task, decoded and checked, with nothing started.
type startPlan struct {
	cfg      *drivers.TaskConfig
	config   spec.Config
	settings settings
	runtime  *runtime.Runtime
	state    *statedir.Dir
	share    spec.Share
	labels   map[string]string
	cdiDirs  []string
	record   record
	// namespaces are those of others that the container joins.
	namespaces spec.Namespaces
	// shmDir is the host's directory that becomes /dev/shm, where tasks share one.
	shmDir string
}

// plan decodes and checks everything that can be checked before anything exists.
func (d *Driver) plan(cfg *drivers.TaskConfig) (*startPlan, error) {
	settings, client, state, err := d.parts()
	if err != nil {
		return nil, err
	}
	p := &startPlan{cfg: cfg, settings: settings, runtime: client, state: state, cdiDirs: append([]string{state.CDIDir()}, settings.CDISpecDirs...)}
	if err := cfg.DecodeDriverConfig(&p.config); err != nil {
		return nil, fmt.Errorf("decode task config: %w", err)
	}
	if err := p.config.Check(settings.policy); err != nil {
		return nil, err
	}
	if err := checkNetwork(cfg, p.config); err != nil {
		return nil, err
	}
	if err := checkPartners(cfg, p.config.Partners()); err != nil {
		return nil, err
	}
	if n := cfg.NetworkIsolation; n != nil {
		p.namespaces.Network = n.Path
	}
	if p.config, err = resolveSources(cfg, p.config, settings.policy); err != nil {
		return nil, err
	}
	if p.share, err = shareOf(cfg, p.config, state); err != nil {
		return nil, err
	}
	if p.labels, err = containerLabels(cfg, p.config.LabelMap()); err != nil {
		return nil, err
	}
	if err := d.checkNode(client, p.config, settings); err != nil {
		return nil, err
	}
	id := newContainerID(cfg)
	p.record = record{Version: recordVersion, TTY: p.config.TTY, CPUSetCPUs: p.config.CPUSetCPUs, Lease: gpu.Lease{
		ID: gpu.LeaseID(cfg.AllocID, cfg.Name), AllocID: cfg.AllocID, Namespace: cfg.Namespace,
		Job: cfg.JobID, Group: cfg.TaskGroupName, Task: cfg.Name,
		Container: id, Cgroup: cgroupPath(settings.Namespace, id, cfg.Resources, unified()),
		Phase: gpu.PhaseStarting, Holdings: p.share.Holdings, StartedAt: time.Now().UTC(),
	}}
	return p, nil
}

// launch makes and starts the container.
func (d *Driver) launch(p *startPlan, output *outputs) (*task, error) {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	image, err := d.image(ctx, p.runtime, p.cfg, p.config)
	if err != nil {
		return nil, err
	}
	if image.Managed() {
		p.labels[labelManaged] = "true"
		if err := p.runtime.TouchImage(ctx, image.Name, time.Now()); err != nil {
			return nil, err
		}
	}
	d.failpoint("image")
	if err := d.join(ctx, p); err != nil {
		return nil, err
	}
	ctx, cancel = context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(err, d.removeBelongings(p.record.Lease.Container))
	}
	d.failpoint("connected")
	container, err := d.create(ctx, p, image)
	if err != nil {
		return nil, errors.Join(err, d.removeBelongings(p.record.Lease.Container))
	}
	d.failpoint("created")
	if err := output.opening(); err != nil {
		return nil, d.abandon(container, err)
	}
	stdio, err := output.stdio(p.config.TTY)
	if err != nil {
		return nil, d.abandon(container, err)
	}
	if err := container.Start(ctx, stdio); err != nil {
		return nil, d.abandon(container, errors.Join(shareLost(p), err))
	}
	if err := newHeldPipes(p.settings).remove(ctx, container.ID); err != nil {
		d.logger.Warn("mounts of MPS pipes stay until the task ends", "container", container.ID, "error", err)
	}
	d.failpoint("running")
	lease := p.record.Lease
	lease.Phase = gpu.PhaseRunning
	if err := d.leases.write(lease); err != nil {
		return nil, d.abandon(container, err)
	}
	return d.watch(p.cfg, container, p.record), nil
}

// removeEarlier removes the earlier containers of a task. It reports whether one
// of them, of the same start, had the output pipes open until now.
func (d *Driver) removeEarlier(cfg *drivers.TaskConfig, earlier []*runtime.Container) (pipesAlive bool, err error) {
	for _, c := range earlier {
		d.logger.Warn("removing an earlier container of the task", "task_id", cfg.ID, "container", c.ID)
		if c.Labels[labelTaskID] == cfg.ID {
			ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
			_, err := c.Status(ctx)
			cancel()
			pipesAlive = pipesAlive || errors.Is(err, runtime.ErrNotStarted)
		}
		if err := d.remove(c); err != nil {
			return false, structs.NewRecoverableError(err, true)
		}
	}
	return pipesAlive, nil
}

func (d *Driver) create(ctx context.Context, p *startPlan, image runtime.Image) (*runtime.Container, error) {
	mounts, err := p.taskMounts()
	if err != nil {
		return nil, err
	}
	resources, err := resourcesOf(p.cfg.Resources, p.config.CPUSetCPUs)
	if err != nil {
		return nil, err
	}
	task := spec.Task{
		Config: p.config, Policy: p.settings.policy, Share: p.share, Resources: resources,
		Env: p.cfg.Env, DeviceEnv: p.cfg.DeviceEnv, Hostname: hostnameOf(p.cfg, p.config),
		Mounts: mounts, Devices: devicesOf(p.cfg.Devices), InitPath: p.settings.InitPath,
		Unified: unified(), NetworkSysctls: networkSysctls(),
		CgroupsPath: p.record.Lease.Cgroup, Namespaces: p.namespaces, ShmDir: p.shmDir, MaxOpenFiles: maxOpenFiles(),
	}
	if apparmor.HostSupports() {
		task.AppArmor = appArmorProfile
	}
	if _, err := stopSignal(image.Config.StopSignal); err != nil {
		return nil, fmt.Errorf("image %q: %w", p.config.Image, err)
	}
	options, err := task.Options(image.Config)
	if err != nil {
		return nil, err
	}
	p.record.StartedAt, p.record.StopSignal = time.Now().UTC(), image.Config.StopSignal
	record, err := p.record.encode()
	if err != nil {
		return nil, fmt.Errorf("encode container record: %w", err)
	}
	name := p.config.Runtime
	if name == "" {
		name = p.settings.ContainerdRuntime
	}
	return p.runtime.Create(ctx, runtime.NewContainer{
		ID: p.record.Lease.Container, Image: image, Options: options, User: p.cfg.User, Groups: p.config.GroupAdd,
		CDI:    cdiDevices(p.cdiDirs, append(append([]string{}, p.share.Devices...), p.config.CDIDevices...)),
		Labels: p.labels, Record: record, Runtime: name,
	})
}

// errNotRemoved means that of a start that failed something may still be there, and
// run.
var errNotRemoved = errors.New("its container could not be removed completely")

// abandon removes the container of a start that failed, and adds to its error what
// could not be undone.
func (d *Driver) abandon(c *runtime.Container, cause error) error {
	if err := d.remove(c); err != nil {
		return errors.Join(cause, fmt.Errorf("%w: %w", errNotRemoved, err))
	}
	return cause
}

// remove deletes a container under a context of its own: it must also succeed
// when the call that needs it was cancelled.
func (d *Driver) remove(c *runtime.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	settings, client, _, err := d.parts()
	if err != nil {
		return err
	}
	// The record of the container goes after what is found by it alone; belongings
	// without a container are found by themselves.
	if err := c.End(ctx); err != nil {
		return err
	}
	if err := removeCgroup(cgroupOfContainer(settings.Namespace, c), unified()); err != nil {
		return err
	}
	if err := c.Remove(ctx); err != nil {
		return err
	}
	if err := d.removeBelongings(c.ID); err != nil {
		return err
	}
	if c.Labels[labelManaged] == "" {
		return nil
	}
	if err := client.TouchImage(ctx, c.Image, time.Now()); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		d.logger.Debug("use of an image is not recorded", "image", c.Image, "error", err)
	}
	return nil
}

// discard forgets a task and removes its container.
func (d *Driver) discard(t *task) error {
	t.cancel()
	d.tasks.remove(t.cfg.ID)
	return d.remove(t.container)
}

// maxOpenFiles is the hard limit of this process, which containerd has as well
// where a service manager started both.
func maxOpenFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return limit.Max
}

func devicesOf(devices []*drivers.DeviceConfig) []spec.Device {
	var all []spec.Device
	for _, d := range devices {
		all = append(all, spec.Device{HostPath: d.HostPath, ContainerPath: d.TaskPath, Permissions: d.Permissions})
	}
	return all
}
