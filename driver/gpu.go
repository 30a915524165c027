// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// requestMeta is the meta key by which a job asks the placement service for GPUs.
const requestMeta = "NOMAD_META_gpu"

// shareOf computes a task's share of GPUs. Its reservation comes from the
// environment that Nomad's device hook set, and from nowhere else.
func shareOf(cfg *drivers.TaskConfig, config taskconfig.Config, state *statedir.Dir) (spec.Share, error) {
	reservations, err := gpu.ReservationsFromEnv(cfg.DeviceEnv)
	if err != nil {
		return spec.Share{}, err
	}
	if len(reservations) == 0 && givenByAnother(cfg) {
		return foreignShare(cfg, config)
	}
	if request := cfg.Env[requestMeta]; request != "" && len(reservations) == 0 {
		return spec.Share{}, fmt.Errorf("task asks for GPUs by meta { gpu = %q }, but was given none: the job was submitted to Nomad itself; submit it to the placement service, or ask for devices in the task's resources", request)
	}
	devices, err := gpu.MergeDevices(reservations)
	if err != nil {
		return spec.Share{}, err
	}
	want, err := config.GPURequest()
	if err != nil {
		return spec.Share{}, err
	}
	states, err := statesOf(devices, state)
	if err != nil {
		return spec.Share{}, err
	}
	return spec.NewShare(devices, states, want)
}

// foreignKinds are the variables by which other device plugins say which GPUs they gave,
// with the kind of the operator's CDI specs that names GPUs by the same IDs.
var foreignKinds = map[string]string{gpu.EnvNVIDIAVisible: "nvidia.com/gpu", "AMD_VISIBLE_DEVICES": "amd.com/gpu"}

// foreignNodes are where the nodes of GPUs lie that other device plugins hand in
// themselves.
var foreignNodes = []string{"/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/davinci", "/dev/vdavinci", "/dev/accel/"}

// givenByAnother reports whether a device plugin that is not ours gave the task GPUs. What
// it gave comes from Nomad's device hook alone.
func givenByAnother(cfg *drivers.TaskConfig) bool {
	for key := range foreignKinds {
		if cfg.DeviceEnv[key] != "" {
			return true
		}
	}
	return slices.ContainsFunc(cfg.Devices, func(d *drivers.DeviceConfig) bool {
		return slices.ContainsFunc(foreignNodes, func(node string) bool { return strings.HasPrefix(d.TaskPath, node) })
	})
}

// foreignShare is the share of a task whose whole GPUs were given by another device
// plugin, such as HashiCorp's, which knows nothing of slices, states and leases. Nodes
// that it hands in are the container's already; GPUs that it names by a variable are those
// of the operator's CDI specs.
func foreignShare(cfg *drivers.TaskConfig, config taskconfig.Config) (spec.Share, error) {
	if want, err := config.GPURequest(); err != nil || want.Set() {
		return spec.Share{}, errors.Join(err, fmt.Errorf("the gpu block needs slices of nomad-device-gpu, and the task's GPUs come from another device plugin; remove the block"))
	}
	share := spec.Share{Env: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(foreignKinds)) {
		if cfg.DeviceEnv[key] == "" {
			continue
		}
		for _, id := range strings.Split(cfg.DeviceEnv[key], ",") {
			share.Devices = append(share.Devices, foreignKinds[key]+"="+id)
		}
	}
	return share, nil
}

// statesOf reads the states of the reserved devices; an absent one is left out.
func statesOf(devices []gpu.ReservedDevice, dir *statedir.Dir) (map[string]gpu.GPUState, error) {
	states := map[string]gpu.GPUState{}
	for _, d := range devices {
		state, err := dir.GPU(d.UUID)
		switch {
		case err == nil:
			states[d.UUID] = state
		case !errors.Is(err, statedir.ErrNotFound):
			return nil, &spec.NotReadyError{UUID: d.UUID, Reason: err.Error()}
		}
	}
	return states, nil
}

// hookPath is all that a CDI hook inherits: without an environment of its own a
// hook would run with one that the image can influence.
const hookPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// cdiDevices injects CDI devices into the specification. The specs are read
// from the operator's directories and from the one that the device plugin
// writes.
func cdiDevices(dirs, names []string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		if len(names) == 0 {
			return nil
		}
		env := slices.Clone(s.Process.Env) // the library edits in place
		cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return fmt.Errorf("read CDI specs: %w", err)
		}
		unknown, err := cache.InjectDevices(s, names...)
		if len(unknown) > 0 {
			return fmt.Errorf("no CDI spec in %s describes %s", strings.Join(dirs, ", "), strings.Join(unknown, ", "))
		}
		if err != nil {
			return fmt.Errorf("inject CDI devices %s: %w", strings.Join(names, ", "), err)
		}
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return spec.MPSProgram(m.Destination) })
		s.Process.Env = spec.KeepGuarded(env, s.Process.Env)
		setHookEnv(s.Hooks)
		return nil
	}
}

func setHookEnv(hooks *specs.Hooks) {
	if hooks == nil {
		return
	}
	//lint:ignore SA1019 Prestart is deprecated, and CDI specs still use it.
	for _, list := range [][]specs.Hook{hooks.Prestart, hooks.CreateRuntime, hooks.CreateContainer, hooks.StartContainer, hooks.Poststart, hooks.Poststop} {
		for i := range list {
			if len(list[i].Env) == 0 {
				list[i].Env = []string{hookPath}
			}
		}
	}
}

// describeShare says in one line what a task got, for its events.
func describeShare(share spec.Share) string {
	parts := make([]string, 0, len(share.Holdings))
	for _, h := range share.Holdings {
		text := "GPU " + h.UUID
		if h.MemoryMiB > 0 {
			text += ", " + gpu.FormatMemory(h.MemoryMiB) + " memory"
			if h.MemoryLimitMiB > 0 {
				text += " and up to " + gpu.FormatMemory(h.MemoryLimitMiB) + " while others leave it"
			}
		} else if len(h.Slices) == 0 || h.GuaranteeMilli == gpu.MilliPerGPU {
			text += ", all of it"
		}
		if h.Partition != nil {
			text += fmt.Sprintf(", %d chunks of multiprocessors of its own for a guarantee of %s", h.Partition.Chunks, gpu.FormatMilli(h.GuaranteeMilli))
		} else if h.LimitMilli > 0 {
			text += fmt.Sprintf(", compute %s, at most %s", gpu.FormatMilli(h.GuaranteeMilli), gpu.FormatMilli(h.LimitMilli))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}
