package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// appArmorProfile is the default profile's name, on hosts with AppArmor.
const appArmorProfile = "nomad-gpu-default"

// startPlan is a task, decoded and checked, with nothing started.
type startPlan struct {
	env     environment
	cfg     *drivers.TaskConfig
	config  spec.Config
	share   spec.Share
	labels  map[string]string
	cdiDirs []string
	record  record.Record
	// namespaces are those of others that the container joins.
	namespaces spec.Namespaces
	// shmDir is the host's directory that becomes /dev/shm, where tasks share one.
	shmDir string
	// files are what the task is to see of the host; stage shows them, by name at
	// the paths in shown, from prepare on.
	files   *taskFiles
	stage   *rooted.Stage
	shown   map[string]string
	seccomp *specs.LinuxSeccomp
	// selfHidden is the target of the author's mount for which the task has no socket.
	selfHidden string
}

// plan decodes and checks everything that can be checked before anything exists.
func (d *Driver) plan(ctx context.Context, cfg *drivers.TaskConfig) (*startPlan, error) {
	env, err := d.configured()
	if err != nil {
		return nil, err
	}
	p := &startPlan{env: env, cfg: cfg, cdiDirs: append([]string{env.state.CDIDir()}, env.settings.CDISpecDirs...)}
	if p.config, err = config.Task(cfg, env.settings.Policy); err != nil {
		return nil, err
	}
	if n := cfg.NetworkIsolation; n != nil {
		p.namespaces.Network = n.Path
	}
	if err := checkVolumes(cfg, p.config); err != nil {
		return nil, err
	}
	if err := checkNames(cfg); err != nil {
		return nil, err
	}
	if p.seccomp, err = seccompProfile(cfg, p.config, env.settings.Policy); err != nil {
		return nil, err
	}
	if p.share, err = shareOf(cfg, p.config, env.state); err != nil {
		return nil, err
	}
	if p.labels, err = record.Labels(cfg, p.config.LabelMap()); err != nil {
		return nil, err
	}
	if err := checkNode(ctx, env.runtime, p.config, env.settings); err != nil {
		return nil, err
	}
	if p.files, err = openTaskFiles(cfg, p.config, env.settings.Policy); err != nil {
		return nil, err
	}
	if d.dataDir.look(cfg.AllocDir) {
		d.logger.Warn("Nomad's data_dir is not mounted with nosuid and nodev: setuid programs and devices that tasks leave there work for people who log in to this node", "path", cfg.AllocDir)
	}
	id := record.NewID(cfg)
	p.record = record.Record{Version: record.Version, TTY: p.config.TTY, CPUSetCPUs: p.config.CPUSetCPUs, CeilingMilli: p.share.CeilingMilli, Lease: gpu.Lease{
		ID: gpu.LeaseID(cfg.AllocID, cfg.Name), AllocID: cfg.AllocID, Namespace: cfg.Namespace,
		Job: cfg.JobID, Group: cfg.TaskGroupName, Task: cfg.Name,
		Container: id, Cgroup: cgroups.Path(env.settings.Namespace, id, cfg.Resources, cgroups.Unified()),
		Phase: gpu.PhaseStarting, Holdings: p.share.Holdings, StartedAt: time.Now().UTC(),
	}}
	return p, nil
}

// create makes the container.
func (p *startPlan) create(ctx context.Context, image runtime.Image) (*runtime.Container, error) {
	mounts, err := p.taskMounts()
	if err != nil {
		return nil, err
	}
	volumes, err := p.volumeMounts()
	if err != nil {
		return nil, err
	}
	resources, err := resourcesOf(p.cfg.Resources, p.config.CPUSetCPUs)
	if err != nil {
		return nil, err
	}
	if p.config.OffersIPC() {
		resources.SharedBytes = p.config.ShmBytes()
	}
	if err := resources.CheckShared(); err != nil {
		return nil, err
	}
	task := spec.Task{
		Config: p.config, Policy: p.env.settings.Policy, Share: p.share, Resources: resources,
		Env: p.cfg.Env, DeviceEnv: p.cfg.DeviceEnv, Hostname: hostnameOf(p.cfg, p.config),
		Volumes: volumes, Mounts: mounts, SeccompProfile: p.seccomp, Devices: devicesOf(p.cfg.Devices), InitPath: p.env.settings.InitPath,
		Unified: cgroups.Unified(), NetworkSysctls: networkSysctls(),
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
	name := p.config.Runtime
	if name == "" {
		name = p.env.settings.ContainerdRuntime
	}
	return p.env.runtime.Create(ctx, runtime.NewContainer{
		ID: p.record.Lease.Container, Image: image, Options: options, User: p.cfg.User, Groups: p.config.GroupAdd,
		CDI: oci.Compose(p.oneUser,
			cdiDevices(p.cdiDirs, append(append([]string{}, p.share.Devices...), p.config.CDIDevices...))),
		Place:  p.placeMounts,
		Labels: p.labels, Record: p.record.Encode(), Runtime: name,
	})
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
