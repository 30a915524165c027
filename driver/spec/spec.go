// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Task is all that decides about a container, apart from what lies in the image
// and in the host's CDI specs.
type Task struct {
	Config    taskconfig.Config
	Policy    taskconfig.Policy
	Share     Share
	Resources Resources
	// Env and DeviceEnv are what Nomad set, the user's and the device plugins'.
	Env, DeviceEnv map[string]string
	// Hostname is used where the config names none.
	Hostname string
	// Volumes are what Nomad mounts where the author says.
	Volumes []taskconfig.Mount
	// Mounts come after those: the allocation's directories, hosts and resolver
	// files.
	Mounts []taskconfig.Mount
	// SeccompProfile is what the author's profile holds, nil for none.
	SeccompProfile *specs.LinuxSeccomp
	// Devices are host device nodes that a device plugin asked for.
	Devices []taskconfig.Device
	// Namespaces are those of others that the container joins.
	Namespaces Namespaces
	// ShmDir is the host's directory that becomes /dev/shm, where tasks share one.
	ShmDir string
	// CgroupsPath is where the container's control group is; empty for
	// containerd's own choice.
	CgroupsPath string
	// Unified is whether the node has cgroup v2 alone.
	Unified bool
	// NetworkSysctls are the defaults of a network that is not the host's, as far
	// as the node's kernel has such settings.
	NetworkSysctls map[string]string
	// AppArmor is the name of the default profile, where the host has AppArmor.
	AppArmor string
	// MaxOpenFiles is the highest limit that the host can give.
	MaxOpenFiles uint64
	// InitPath is the host's init program, bound into containers that want one.
	InitPath string
}

// InitTarget is where the init program is in a container.
const InitTarget = "/run/nomad-gpu/init"

// Options returns the OCI specification of a task as options upon containerd's
// default, which denies every device. Whoever generates the specification adds
// the user, from the image's files, and CDI devices after them.
func (t Task) Options(image ispec.ImageConfig) ([]oci.SpecOpts, error) {
	cwd, err := t.cwd(image)
	if err != nil {
		return nil, err
	}
	args, err := t.args(image)
	if err != nil {
		return nil, err
	}
	env := t.Share.withSelfOnPath(Env(image.Env, t.Env, t.DeviceEnv, t.Share.Env))
	if err := checkProcess(args, env); err != nil {
		return nil, err
	}
	var mistakes taskconfig.Mistakes
	limits := t.Config.Limits(&mistakes)
	if err := mistakes.Err(); err != nil {
		return nil, err
	}
	mounts, err := t.mounts(limits)
	if err != nil {
		return nil, err
	}
	security, err := t.security()
	if err != nil {
		return nil, err
	}
	devices, err := t.devices()
	if err != nil {
		return nil, err
	}
	options := []oci.SpecOpts{
		oci.WithProcessArgs(args...),
		// Images have files in /run that their programs need; Docker shows them.
		oci.WithoutRunMount,
		edit(func(s *oci.Spec) {
			s.Process.Env = env
			s.Process.Terminal = t.Config.TTY
			s.Process.Rlimits = mergeRlimits(t.openFiles(), limits.Rlimits)
			s.Process.Cwd = cwd
			s.Linux.Sysctl = t.sysctl(limits.Sysctl)
			s.Linux.Resources.CPU = t.Resources.cpu(t.Config)
			s.Linux.Resources.Memory = t.Resources.memory(t.Config, limits.SwapBytes)
			s.Linux.Resources.Pids = pids(t.Config, t.Policy)
			s.Linux.Resources.Unified = t.Share.unified()
			score := int(t.Config.OOMScoreAdj)
			s.Process.OOMScoreAdj = &score
			if t.CgroupsPath != "" {
				s.Linux.CgroupsPath = t.CgroupsPath
			}
		}),
		t.namespaces(),
	}
	options = append(options, mounts...)
	options = append(options, devices...)
	return append(options, security...), nil
}

// edit is a specification option that cannot fail.
func edit(change func(*oci.Spec)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		change(s)
		return nil
	}
}

// args is the command line: the author's entrypoint and command replace the
// image's, and a command alone follows the image's entrypoint only when the
// author wrote no entrypoint and no command.
func (t Task) args(image ispec.ImageConfig) ([]string, error) {
	c := t.Config
	args := slices.Clone(image.Entrypoint)
	if len(c.Entrypoint) > 0 {
		args = slices.Clone(c.Entrypoint)
	}
	switch {
	case c.Command != "":
		args = append(args, c.Command)
		args = append(args, c.Args...)
	case len(c.Args) > 0:
		args = append(args, c.Args...)
	case len(c.Entrypoint) == 0:
		args = append(args, image.Cmd...)
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("nothing to run: image %q has no entrypoint and no command, and the config has neither entrypoint, command nor args", c.Image)
	}
	if c.Init {
		args = append([]string{InitTarget, "--"}, args...)
	}
	return args, nil
}

func (t Task) cwd(image ispec.ImageConfig) (string, error) {
	own, ofImage := t.Config.Cwd, image.WorkingDir
	switch {
	case own != "" && !path.IsAbs(own):
		return "", fmt.Errorf("cwd %.80q is not absolute", own)
	case own != "" && taskconfig.InKernelPath(path.Clean(own)):
		return "", fmt.Errorf("cwd: %.80q is not valid (a directory outside /proc, /sys and /dev, where descriptors of the runtime's lead out of the container)", own)
	case own != "":
		return own, nil
	case ofImage != "" && !path.IsAbs(ofImage):
		return "", fmt.Errorf("image: working directory %.80q is not absolute; set cwd in the task's config", ofImage)
	case taskconfig.InKernelPath(path.Clean(ofImage)):
		return "", fmt.Errorf("image: working directory %.80q is not valid (a directory outside /proc, /sys and /dev, where descriptors of the runtime's lead out of the container); set cwd in the task's config", ofImage)
	case ofImage != "":
		return ofImage, nil
	}
	return "/", nil
}

// mounts puts the author's first and ours last, so that nothing of the author's
// can cover what a GPU share, the allocation or the resolver needs.
func (t Task) mounts(l taskconfig.Limits) ([]oci.SpecOpts, error) {
	if err := t.checkShm(); err != nil {
		return nil, err
	}
	ours := append(slices.Clone(t.Mounts), t.Share.Mounts...)
	if t.Config.Init {
		ours = append(ours, taskconfig.Mount{Type: "bind", Source: t.InitPath, Target: InitTarget, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	all := slices.Clone(t.Volumes)
	for _, m := range t.Config.Mounts {
		mount, err := m.Mount()
		if err != nil {
			return nil, taskconfig.Mistake{Key: "mounts", Problem: err.Error()}
		}
		all = append(all, mount)
	}
	for i, m := range all {
		if i := slices.IndexFunc(ours, func(o taskconfig.Mount) bool { return taskconfig.Covers(m.Target, o.Target) }); i >= 0 {
			return nil, fmt.Errorf("mounts: target %q would cover %q, which the driver mounts", m.Target, ours[i].Target)
		}
		if i >= len(t.Volumes) && slices.ContainsFunc(t.Volumes, func(v taskconfig.Mount) bool { return taskconfig.Covers(m.Target, v.Target) }) {
			return nil, fmt.Errorf("mounts: target %q would cover a volume", m.Target)
		}
	}
	if err := t.shareStaysWhole(append(slices.Clone(all), t.Mounts...)); err != nil {
		return nil, err
	}
	all = append(all, ours...)
	// What lies deeper comes later, or it would be hidden.
	slices.SortStableFunc(all, func(a, b taskconfig.Mount) int { return strings.Count(a.Target, "/") - strings.Count(b.Target, "/") })
	return []oci.SpecOpts{edit(func(s *oci.Spec) {
		s.Mounts = append(s.Mounts, cgroupMount())
		if propagation := rootPropagation(all); propagation != "" {
			s.Linux.RootfsPropagation = propagation
		}
		for _, m := range all {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(have specs.Mount) bool { return have.Destination == m.Target })
			s.Mounts = append(s.Mounts, ociMount(m))
		}
		for i, m := range s.Mounts {
			if m.Destination != taskconfig.ShmPath {
				continue
			}
			switch {
			case t.Config.IPCMode == taskconfig.ModeHost && !t.Share.MPS:
				s.Mounts[i] = shmOf(taskconfig.ShmPath)
			case t.ShmDir != "":
				s.Mounts[i] = shmOf(t.ShmDir)
			case l.ShmBytes > 0 && m.Type == "tmpfs":
				s.Mounts[i].Options = []string{"nosuid", "noexec", "nodev", "mode=1777", fmt.Sprintf("size=%d", l.ShmBytes)}
			}
		}
	})}, nil
}

// cgroupMount shows a container its own control group, where programs look for
// the limits that they have to live with. A privileged one may write there: its
// options are changed in place, so each container has its own.
func cgroupMount() specs.Mount {
	return specs.Mount{
		Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup",
		Options: []string{"ro", "nosuid", "noexec", "nodev", "relatime"},
	}
}

// shmOf makes a directory of the host the container's /dev/shm.
func shmOf(dir string) specs.Mount {
	return specs.Mount{Type: "bind", Source: dir, Destination: taskconfig.ShmPath, Options: []string{"rbind", "nosuid", "noexec", "nodev"}}
}

// checkShm refuses what would want a /dev/shm beside that of an MPS daemon.
func (t Task) checkShm() error {
	switch {
	case !t.Share.MPS:
		return nil
	case t.Config.ShmSize != "":
		return fmt.Errorf("shm_size cannot be set for a task that shares a GPU through MPS: it uses the /dev/shm of the MPS daemon; remove shm_size")
	case t.ShmDir != "":
		return fmt.Errorf("ipc_mode %q is not possible for a task that shares a GPU through MPS: it uses the /dev/shm of the MPS daemon, as do the other tasks on that GPU; remove ipc_mode", t.Config.IPCMode)
	}
	return nil
}

// shareStaysWhole refuses mounts inside those of the GPU share: they would hide
// a socket, or be made in a directory that tasks share.
func (t Task) shareStaysWhole(mounts []taskconfig.Mount) error {
	for _, m := range mounts {
		if i := slices.IndexFunc(t.Share.Mounts, func(o taskconfig.Mount) bool { return taskconfig.Covers(o.Target, m.Target) }); i >= 0 {
			return fmt.Errorf("mounts: target %q lies in %q, which belongs to the task's GPU share; mount it elsewhere", m.Target, t.Share.Mounts[i].Target)
		}
	}
	return nil
}

func (t Task) devices() ([]oci.SpecOpts, error) {
	all := slices.Clone(t.Devices)
	for _, text := range t.Config.Devices {
		device, err := taskconfig.ParseDevice(text)
		if err != nil {
			return nil, taskconfig.Mistake{Key: "devices", Problem: err.Error()}
		}
		all = append(all, device)
	}
	var options []oci.SpecOpts
	for _, d := range all {
		options = append(options, oci.WithDevices(d.HostPath, d.ContainerPath, d.Permissions))
	}
	return options, nil
}

// security is last but for the user: seccomp's default profile reads the
// capabilities that stand in the specification by then.
func (t Task) security() ([]oci.SpecOpts, error) {
	c := t.Config
	if c.Privileged {
		// Control groups keep counting, everything else is the host's.
		return []oci.SpecOpts{oci.WithPrivileged, oci.WithHostDevices, oci.WithAllDevicesAllowed, oci.WithNewPrivileges, oci.WithWriteableSysfs, oci.WithWriteableCgroupfs}, nil
	}
	caps, err := c.Capabilities(t.Policy)
	if err != nil {
		return nil, err
	}
	options := []oci.SpecOpts{
		oci.WithCapabilities(caps),
		edit(func(s *oci.Spec) {
			s.Process.NoNewPrivileges = c.NoNewPrivileges
			s.Root.Readonly = c.ReadonlyRootfs
		}),
	}
	switch {
	case c.WantsAppArmor():
		options = append(options, oci.WithApparmorProfile(c.AppArmor))
	case t.AppArmor != "" && c.AppArmor == "":
		options = append(options, apparmor.WithDefaultProfile(t.AppArmor))
	}
	if c.SELinuxLabel != "" {
		options = append(options, oci.WithSelinuxLabel(c.SELinuxLabel))
	}
	switch {
	case t.SeccompProfile != nil:
		options = append(options, edit(func(s *oci.Spec) { s.Linux.Seccomp = t.SeccompProfile }))
	case c.Seccomp:
		options = append(options, seccomp.WithDefaultProfile())
	}
	return options, nil
}

// openFiles is systemd's default limit of open files for services, as far as the host
// allows it: containerd's own hard limit of 1024 is less than many programs need.
func (t Task) openFiles() []specs.POSIXRlimit {
	const soft, hard = 1024, 524288
	return []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: min(soft, t.MaxOpenFiles), Hard: min(hard, t.MaxOpenFiles)}}
}

func mergeRlimits(have, wanted []specs.POSIXRlimit) []specs.POSIXRlimit {
	have = slices.DeleteFunc(slices.Clone(have), func(h specs.POSIXRlimit) bool {
		return slices.ContainsFunc(wanted, func(w specs.POSIXRlimit) bool { return w.Type == h.Type })
	})
	return append(have, wanted...)
}
