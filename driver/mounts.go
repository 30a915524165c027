package driver

import (
	"fmt"
	"os"
	"path/filepath"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// taskMounts are the mounts that every task gets: the directories of its
// allocation, the volumes that Nomad prepared, and the files of its network.
func (p *startPlan) taskMounts() ([]spec.Mount, error) {
	cfg := p.cfg
	dir := cfg.TaskDir()
	mounts := []spec.Mount{
		bind(dir.SharedAllocDir, allocdir.SharedAllocContainerPath, false, "rprivate"),
		bind(dir.LocalDir, allocdir.TaskLocalContainerPath, false, "rprivate"),
		bind(dir.SecretsDir, allocdir.TaskSecretsContainerPath, false, "rprivate"),
	}
	for _, m := range cfg.Mounts {
		propagation, err := propagationOf(m.PropagationMode)
		if err != nil {
			return nil, fmt.Errorf("volume at %q: %w", m.TaskPath, err)
		}
		mounts = append(mounts, bind(m.HostPath, m.TaskPath, m.Readonly, propagation))
	}
	if p.share.HAMi {
		preload := filepath.Join(dir.Dir, "ld.so.preload")
		if err := statedir.WriteFile(preload, []byte(spec.PreloadContent), 0o644); err != nil {
			return nil, err
		}
		mounts = append(mounts, bind(preload, spec.PreloadPath, true, "rprivate"))
	}
	authors := make([]spec.Mount, 0, len(p.config.Mounts))
	for _, m := range p.config.Mounts {
		mount, err := m.Mount()
		if err != nil {
			return nil, err
		}
		authors = append(authors, mount)
	}
	if err := checkPropagation(append(authors, mounts...)); err != nil {
		return nil, err
	}
	network, err := p.networkFiles()
	return append(mounts, network...), err
}

func bind(source, target string, readonly bool, propagation string) spec.Mount {
	options := []string{"rbind", "rw", propagation}
	if readonly {
		options[1] = "ro"
	}
	return spec.Mount{Type: "bind", Source: source, Target: target, Options: options}
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

// resolveSources turns the files that the author names into host paths. A
// relative one lies in the task directory and cannot leave it, by ".." or by a
// symbolic link; an absolute one must be allowed, with all links followed.
func resolveSources(cfg *drivers.TaskConfig, config spec.Config, policy spec.Policy) (spec.Config, error) {
	resolved := make([]spec.MountConfig, len(config.Mounts))
	for i, m := range config.Mounts {
		if m.Type != "tmpfs" && m.Source != "" {
			source, err := resolveSource(cfg, m.Source, policy)
			if err != nil {
				return config, fmt.Errorf("mounts: target %q: %w", m.Target, err)
			}
			m.Source = source
		}
		resolved[i] = m
	}
	config.Mounts = resolved
	if config.SeccompProfile != "" {
		profile, err := resolveSource(cfg, config.SeccompProfile, policy)
		if err != nil {
			return config, fmt.Errorf("seccomp_profile: %w", err)
		}
		config.SeccompProfile = profile
	}
	return config, nil
}

func resolveSource(cfg *drivers.TaskConfig, source string, policy spec.Policy) (string, error) {
	if !filepath.IsAbs(source) {
		return inTaskDir(cfg, source)
	}
	// Before links are followed, so that nobody learns what exists.
	if err := policy.PathAllowed(filepath.Clean(source)); err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		return "", err
	}
	if err := policy.PathAllowed(real); err != nil {
		return "", err
	}
	return real, nil
}

// inTaskDir returns the host path of a file that a task names relative to its
// directory. Links are followed as if the directory were the root.
func inTaskDir(cfg *drivers.TaskConfig, name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("path %q leaves the task directory", name)
	}
	path, err := securejoin.SecureJoin(cfg.TaskDir().Dir, name)
	if err != nil {
		return "", fmt.Errorf("path %q: %w", name, err)
	}
	if _, err := os.Lstat(path); err != nil {
		return "", fmt.Errorf("path %q is not in the task directory: %w", name, err)
	}
	return path, nil
}
