// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"path"

	"github.com/hashicorp/nomad/client/allocdir"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// taskMounts are the mounts that every task gets: the directories of its
// allocation, and the files of its network.
func (p *startPlan) taskMounts() ([]taskconfig.Mount, error) {
	mounts := []taskconfig.Mount{
		ofAllocation(p.shown[shownAlloc], allocdir.SharedAllocContainerPath, false),
		// Nomad's log collector and the next start of a task find their pipes
		// there; see package output.
		ofAllocation(p.shown[shownLogs], path.Join(allocdir.SharedAllocContainerPath, allocdir.LogDirName), true),
		// Nomad's client makes these again when it starts, and changes their mode and
		// owner, by name and as root: a mount point can be neither moved nor replaced.
		ofAllocation(p.shown[shownData], path.Join(allocdir.SharedAllocContainerPath, allocdir.SharedDataDir), false),
		ofAllocation(p.shown[shownTmp], path.Join(allocdir.SharedAllocContainerPath, allocdir.TmpDirName), false),
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
func (p *startPlan) volumeMounts() ([]taskconfig.Mount, error) {
	var mounts []taskconfig.Mount
	for i, m := range p.cfg.Mounts {
		propagation, err := propagationOf(m.PropagationMode)
		if err != nil {
			return nil, fmt.Errorf("volume at %q: %w", m.TaskPath, err)
		}
		mounts = append(mounts, bind(p.shown[shownVolume(i)], path.Clean(m.TaskPath), m.Readonly, propagation))
	}
	return mounts, nil
}
