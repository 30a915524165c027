// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// startPlan is a task, decoded and checked, with nothing started.
type startPlan struct {
	env     environment
	cfg     *drivers.TaskConfig
	config  taskconfig.Config
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
	p.record = record.Record{Version: record.Version, TTY: p.config.TTY, CPUSetCPUs: p.config.CPUSetCPUs, CeilingMilli: p.share.CeilingMilli, BelowNormal: p.share.Env[gpu.EnvMPSPriority] == "1", Lease: gpu.Lease{
		ID: gpu.LeaseID(cfg.AllocID, cfg.Name), AllocID: cfg.AllocID, Namespace: cfg.Namespace,
		Job: cfg.JobID, Group: cfg.TaskGroupName, Task: cfg.Name,
		Container: id, Cgroup: cgroups.Path(env.settings.Namespace, id, cfg.Resources, cgroups.Unified()),
		Phase: gpu.PhaseStarting, Holdings: p.share.Holdings, StartedAt: time.Now().UTC(),
	}}
	return p, nil
}
