// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

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

func devicesOf(devices []*drivers.DeviceConfig) []taskconfig.Device {
	var all []taskconfig.Device
	for _, d := range devices {
		all = append(all, taskconfig.Device{HostPath: d.HostPath, ContainerPath: d.TaskPath, Permissions: d.Permissions})
	}
	return all
}

// oneUser refuses a task for now whose user is another than that of the tasks on its
// MPS server, where that takes one user at a time: CUDA would wait without a word.
func (p *startPlan) oneUser(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	if !p.share.OneUser {
		return nil
	}
	leases, err := p.env.state.Leases()
	if err != nil {
		return err
	}
	mine := p.share.Holdings[0]
	for _, l := range leases {
		sharesServer := func(h gpu.Holding) bool { return h.UUID == mine.UUID && h.MPSGeneration == mine.MPSGeneration }
		if l.ID == p.record.Lease.ID || !l.Live() || !slices.ContainsFunc(l.Holdings, sharesServer) {
			continue
		}
		dirs, err := cgroups.Tree(cgroups.Of(l), cgroups.Unified())
		if err != nil {
			return err
		}
		pids, err := cgroups.Processes(dirs)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			var its unix.Stat_t
			if unix.Stat(fmt.Sprintf("/proc/%d", pid), &its) == nil && its.Uid != s.Process.User.UID {
				return &spec.NotReadyError{UUID: mine.UUID, Reason: fmt.Sprintf(
					"its MPS server takes programs of one user at a time (mps_users = %q): task %s runs there as user %d, and this one is for user %d; run both as the same user, or use a driver of branch 555 or newer",
					gpu.MPSUsersOne, l.ID, its.Uid, s.Process.User.UID)}
			}
		}
	}
	return nil
}

// limitMemory has NVIDIA's driver hold the task's control group to its GPU memory. It
// is called when the group is there and nothing of the task has run.
func (p *startPlan) limitMemory(ctx context.Context) error {
	for _, l := range p.share.MemoryLimits {
		group, err := cgroups.Dir(p.record.Lease.Cgroup)
		if err != nil {
			return &spec.NotReadyError{UUID: l.UUID, Reason: err.Error()}
		}
		if err := runLimiter(ctx, l.Command, l.UUID, group, strconv.FormatInt(l.GuaranteeMiB, 10), strconv.FormatInt(l.LimitMiB, 10)); err != nil {
			return &spec.NotReadyError{UUID: l.UUID, Reason: "the task could not be held to its memory: " + err.Error()}
		}
	}
	return nil
}
