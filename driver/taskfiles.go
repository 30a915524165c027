// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/plugins/drivers"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// taskFiles are the files of the host that a task is to see, each opened once, in
// the beginning of a start. What the task or one beside it does to their names
// from then on means nothing.
type taskFiles struct {
	// shown are mounted in the container's stage, under their names.
	shown []shownFile
}

type shownFile struct {
	name    string
	handle  *rooted.Handle
	binding rooted.Binding
}

// Names of what every task sees of its allocation.
const (
	shownAlloc   = "alloc"
	shownLogs    = "logs"
	shownData    = "data"
	shownTmp     = "tmp"
	shownLocal   = "local"
	shownSecrets = "secrets"
)

// maxSecrets is how many files a task's directory of secrets can hold, where that is a
// file system in memory of its own. Nomad bounds its size, and files without content have
// none.
const maxSecrets = 4096

func shownVolume(i int) string { return fmt.Sprintf("volume%d", i) }
func shownMount(i int) string  { return fmt.Sprintf("mount%d", i) }

// openTaskFiles opens the directories of the allocation, the volumes that Nomad
// prepared, and what the author mounts.
func openTaskFiles(cfg *drivers.TaskConfig, config taskconfig.Config, policy taskconfig.Policy) (files *taskFiles, err error) {
	files = &taskFiles{}
	defer func() {
		if err != nil {
			files.close()
		}
	}()
	alloc, err := rooted.OpenHost(cfg.AllocDir)
	if err != nil {
		return files, fmt.Errorf("open the allocation's directory: %w", err)
	}
	defer alloc.Close()
	if err := files.openAllocation(alloc, cfg.Name); err != nil {
		return files, fmt.Errorf("open the allocation's directory: %w", err)
	}
	for i, m := range cfg.Mounts {
		if err := files.openVolume(shownVolume(i), m); err != nil {
			return files, fmt.Errorf("volume at %q: %w", m.TaskPath, err)
		}
	}
	for i, m := range config.Mounts {
		if m.Type == "tmpfs" || m.Source == "" {
			continue
		}
		handle, err := openSource(alloc, cfg.Name, m.Source, policy)
		if err != nil {
			return files, fmt.Errorf("mounts: target %q: %w", m.Target, err)
		}
		binding, err := bindingOf(m)
		files.add(shownMount(i), handle, binding)
		if err != nil {
			return files, fmt.Errorf("mounts: %w", err)
		}
		if !handle.Mountable() {
			return files, fmt.Errorf("mounts: target %q: source %q is a device; see devices", m.Target, m.Source)
		}
		if err := checkPropagation(handle, binding.Propagation); err != nil {
			return files, fmt.Errorf("mounts: target %q: %w", m.Target, err)
		}
	}
	return files, nil
}

// openAllocation opens the directories of the allocation that every task sees.
func (f *taskFiles) openAllocation(alloc *rooted.Handle, task string) error {
	// Nomad writes tokens there as root, by name, each time that it starts the task.
	if err := alloc.RefuseLinks(task, allocdir.TaskSecrets); err != nil {
		return err
	}
	for name, way := range map[string][]string{
		shownAlloc:   {allocdir.SharedAllocName},
		shownLogs:    {allocdir.SharedAllocName, allocdir.LogDirName},
		shownData:    {allocdir.SharedAllocName, allocdir.SharedDataDir},
		shownTmp:     {allocdir.SharedAllocName, allocdir.TmpDirName},
		shownLocal:   {task, allocdir.TaskLocal},
		shownSecrets: {task, allocdir.TaskSecrets},
	} {
		dir, err := alloc.Child(way...)
		if err != nil {
			return err
		}
		f.add(name, dir, rooted.Binding{Propagation: rooted.Private, Restrictions: ofAllocation("", "", name == shownLogs).Restrictions()})
		if !dir.IsDir() {
			return fmt.Errorf("%q is not a directory", path.Join(way...))
		}
		if name != shownSecrets {
			continue
		}
		if err := dir.LimitInodes(maxSecrets); err != nil {
			return err
		}
	}
	return nil
}

func (f *taskFiles) add(name string, h *rooted.Handle, b rooted.Binding) {
	f.shown = append(f.shown, shownFile{name, h, b})
}

// close lets all files go; a container that was made keeps its mounts.
func (f *taskFiles) close() {
	for _, s := range f.shown {
		_ = s.handle.Close()
	}
}

// show mounts all of them in a stage and returns their paths by name.
func (f *taskFiles) show(stage *rooted.Stage) (map[string]string, error) {
	paths := map[string]string{}
	for _, s := range f.shown {
		path, err := stage.Bind(s.name, s.handle, s.binding)
		if err != nil {
			return nil, err
		}
		paths[s.name] = path
	}
	return paths, nil
}

// openVolume opens what Nomad or a device plugin mounts: a path of the operator's.
func (f *taskFiles) openVolume(name string, m *drivers.MountConfig) error {
	propagation, err := propagationOf(m.PropagationMode)
	if err != nil {
		return err
	}
	handle, err := rooted.OpenHost(m.HostPath)
	if err != nil {
		return err
	}
	f.add(name, handle, rooted.Binding{
		Propagation:  stagePropagation(propagation),
		Restrictions: bind("", "", m.Readonly, propagation).Restrictions(),
	})
	return checkPropagation(handle, stagePropagation(propagation))
}

// stagePropagation is a stage's mount propagation, by the options of a container's
// mount.
func stagePropagation(options ...string) rooted.Propagation {
	switch taskconfig.PropagationOf(options) {
	case "rshared":
		return rooted.Shared
	case "rslave":
		return rooted.Slave
	}
	return rooted.Private
}

// bindingOf tells how the source of an author's mount is shown.
func bindingOf(m taskconfig.MountConfig) (rooted.Binding, error) {
	mount, err := m.Mount()
	return rooted.Binding{
		Alone:        slices.Contains(mount.Options, "bind") && !slices.Contains(mount.Options, "rbind"),
		Propagation:  stagePropagation(mount.Options...),
		Restrictions: mount.Restrictions(),
	}, err
}

// openSource opens a file that the author names. A relative one lies in the task
// directory and cannot leave it; an absolute one must be allowed, with all links
// followed.
func openSource(alloc *rooted.Handle, task, source string, policy taskconfig.Policy) (*rooted.Handle, error) {
	if !filepath.IsAbs(source) {
		return openInTaskDir(alloc, task, source)
	}
	// Before links are followed, so that a task cannot learn what exists.
	if err := policy.PathAllowed(filepath.Clean(source)); err != nil {
		return nil, err
	}
	handle, err := openHostFile(source)
	if err != nil {
		return nil, err
	}
	real, err := handle.HostPath()
	if err == nil {
		err = policy.PathAllowed(real)
	}
	if err != nil {
		return nil, errors.Join(err, handle.Close())
	}
	return handle, nil
}

// openHostFile follows links, but not those of /proc, which lead out of any
// directory.
func openHostFile(path string) (*rooted.Handle, error) {
	root, err := rooted.OpenHost("/")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Resolve(path)
}

// openInTaskDir opens a file that a task names relative to its directory. The
// directory itself is Nomad's, with more in it than the task may see, so a name
// must lead further, into one of the directories or files in it; that is the root
// in which links are followed.
func openInTaskDir(alloc *rooted.Handle, task, name string) (*rooted.Handle, error) {
	clean := filepath.Clean(name)
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("path %q leaves the task directory", name)
	}
	first, rest, _ := strings.Cut(clean, "/")
	if first == "." || first == allocdir.TaskPrivate {
		return nil, fmt.Errorf("path %q is not the task's: write one below %s or %s", name, allocdir.TaskLocal, allocdir.TaskSecrets)
	}
	top, err := alloc.Child(task, first)
	if err != nil {
		return nil, fmt.Errorf("path %q is not in the task directory: %w", name, err)
	}
	defer top.Close()
	handle, err := top.Resolve(rest)
	if err != nil {
		return nil, fmt.Errorf("path %q is not in the task directory: %w", name, err)
	}
	return handle, nil
}

// openTaskFile is openInTaskDir for a file that the driver itself reads.
func openTaskFile(cfg *drivers.TaskConfig, name string) (*rooted.Handle, error) {
	alloc, err := rooted.OpenHost(cfg.AllocDir)
	if err != nil {
		return nil, fmt.Errorf("open the allocation's directory: %w", err)
	}
	defer alloc.Close()
	return openInTaskDir(alloc, cfg.Name, name)
}

// maxProfile is how large a seccomp profile may be; Docker's has 15 KiB.
const maxProfile = 1 << 20

// seccompProfile reads the author's profile, nil for none.
func seccompProfile(cfg *drivers.TaskConfig, config taskconfig.Config, policy taskconfig.Policy) (*specs.LinuxSeccomp, error) {
	if config.SeccompProfile == "" {
		return nil, nil
	}
	alloc, err := rooted.OpenHost(cfg.AllocDir)
	if err != nil {
		return nil, fmt.Errorf("open the allocation's directory: %w", err)
	}
	defer alloc.Close()
	handle, err := openSource(alloc, cfg.Name, config.SeccompProfile, policy)
	if err != nil {
		return nil, fmt.Errorf("seccomp_profile: %w", err)
	}
	defer handle.Close()
	text, err := handle.ReadAll(maxProfile)
	if err != nil {
		return nil, fmt.Errorf("seccomp_profile %q: %w", config.SeccompProfile, err)
	}
	profile, err := spec.ParseSeccomp(text)
	if err != nil {
		return nil, fmt.Errorf("seccomp_profile %q: %w", config.SeccompProfile, err)
	}
	return profile, nil
}

func bind(source, target string, readonly bool, propagation string) taskconfig.Mount {
	options := []string{"rbind", "rw", propagation}
	if readonly {
		options[1] = "ro"
	}
	return taskconfig.Mount{Type: "bind", Source: source, Target: target, Options: options}
}

// ofAllocation mounts a directory of the allocation. Tasks of other users and
// programs of the host see the same files: what one task makes is neither a device
// nor a way to become its owner for the others.
func ofAllocation(source, target string, readonly bool) taskconfig.Mount {
	m := bind(source, target, readonly, "rprivate")
	m.Options = append(m.Options, "nosuid", "nodev")
	return m
}

// propagationOf translates Nomad's words for volume mounts.
func propagationOf(mode string) (string, error) {
	switch mode {
	case "", "private":
		return "rprivate", nil
	case "host-to-task":
		return "rslave", nil
	case "bidirectional":
		return "rshared", nil
	}
	return "", fmt.Errorf("propagation %q is not one of private, host-to-task, bidirectional", mode)
}

// checkVolumes holds what Nomad mounts to the rules for what an author mounts:
// volume_mount names the place in the container and the propagation, and Nomad takes
// any. One that goes both ways is left to Nomad, which gives it to CSI plugins: a task
// that is not privileged cannot mount anything.
func checkVolumes(cfg *drivers.TaskConfig, config taskconfig.Config) error {
	for _, m := range cfg.Mounts {
		if m.TaskPath == "/dev" && m.HostPath == "/dev" && !config.Privileged {
			return errors.New("csi_plugin: a CSI plugin must be privileged, since Nomad mounts the host's /dev into it: write privileged = true in the task's config, which needs the operator's allow_privileged")
		}
		if err := config.CheckTarget(path.Clean(m.TaskPath)); err != nil {
			return fmt.Errorf("volume_mount: %w", err)
		}
		propagation, err := propagationOf(m.PropagationMode)
		if err == nil && m.Readonly {
			err = config.CheckPropagation([]string{"ro", propagation})
		}
		if err != nil {
			return fmt.Errorf("volume at %q: %w", m.TaskPath, err)
		}
	}
	return nil
}

func shownNamespace(kind string) string { return "ns-" + kind }
