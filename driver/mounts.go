package driver

import (
	"fmt"
	"path"

	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// taskMounts are the mounts that every task gets: the directories of its
// allocation, and the files of its network.
func (p *startPlan) taskMounts() ([]spec.Mount, error) {
	mounts := []spec.Mount{
		ofAllocation(p.shown[shownAlloc], allocdir.SharedAllocContainerPath, false),
		// Nomad's log collector and the next start of a task find their pipes
		// there; see package output.
		ofAllocation(p.shown[shownLogs], path.Join(allocdir.SharedAllocContainerPath, allocdir.LogDirName), true),
		ofAllocation(p.shown[shownLocal], allocdir.TaskLocalContainerPath, false),
		ofAllocation(p.shown[shownSecrets], allocdir.TaskSecretsContainerPath, false),
	}
	if p.share.HAMi {
		preload, err := p.stage.Write("ld.so.preload", []byte(spec.PreloadContent))
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, bind(preload, spec.PreloadPath, true, "rprivate"))
	}
	network, err := p.networkFiles()
	return append(mounts, network...), err
}

// volumeMounts are what Nomad prepared: volumes, and mounts of device plugins.
func (p *startPlan) volumeMounts() ([]spec.Mount, error) {
	var mounts []spec.Mount
	for i, m := range p.cfg.Mounts {
		propagation, err := propagationOf(m.PropagationMode)
		if err != nil {
			return nil, fmt.Errorf("volume at %q: %w", m.TaskPath, err)
		}
		mounts = append(mounts, bind(p.shown[shownVolume(i)], path.Clean(m.TaskPath), m.Readonly, propagation))
	}
	return mounts, nil
}

func bind(source, target string, readonly bool, propagation string) spec.Mount {
	options := []string{"rbind", "rw", propagation}
	if readonly {
		options[1] = "ro"
	}
	return spec.Mount{Type: "bind", Source: source, Target: target, Options: options}
}

// ofAllocation mounts a directory of the allocation. Tasks of other users and
// programs of the host see the same files: what one task makes is neither a device
// nor a way to become its owner for the others.
func ofAllocation(source, target string, readonly bool) spec.Mount {
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
func checkVolumes(cfg *drivers.TaskConfig, config spec.Config) error {
	for _, m := range cfg.Mounts {
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
