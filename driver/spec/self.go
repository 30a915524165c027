// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// SelfTargets are the places below SelfDir at which something is mounted in a container:
// the directories, and the files.
func (s *Share) SelfTargets() (dirs, files []string) {
	for _, m := range s.Mounts {
		at, inside := strings.CutPrefix(m.Target, gpu.SelfDir+"/")
		switch {
		case !inside:
		case m.Type == "tmpfs" || m.Target == mpsPipePath:
			dirs = append(dirs, at)
		default:
			files = append(files, at)
		}
	}
	return dirs, append(files, strings.TrimPrefix(InitTarget, gpu.SelfDir+"/"))
}

// ShowSelf shows the container the directory with its task's socket and, unless it is
// empty, the program that speaks to it.
func (s *Share) ShowSelf(dir, program string) {
	s.Mounts = append(s.Mounts, taskconfig.Mount{Type: "bind", Source: dir, Target: gpu.SelfDir, Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec", "rprivate"}})
	if program != "" {
		s.Mounts = append(s.Mounts, taskconfig.Mount{Type: "bind", Source: program, Target: gpu.SelfProgram, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	s.Env[gpu.EnvSelfSocket] = gpu.SelfSocket
}

// HidesSelf returns the first target of an author's that lies over or in the directory of
// the task's socket, "" for none.
func HidesSelf(targets []string) string {
	for _, target := range targets {
		if taskconfig.Covers(target, gpu.SelfDir) || taskconfig.Covers(gpu.SelfDir, target) {
			return target
		}
	}
	return ""
}

// withSelfOnPath lets programs be found by name where the task's socket has one.
func (s *Share) withSelfOnPath(env []string) []string {
	if !slices.ContainsFunc(s.Mounts, func(m taskconfig.Mount) bool { return m.Target == gpu.SelfProgram }) {
		return env
	}
	env = slices.Clone(env)
	for i, entry := range env {
		if found, is := strings.CutPrefix(entry, "PATH="); is {
			env[i] = "PATH=" + strings.TrimPrefix(found+":"+gpu.SelfBinDir, ":")
		}
	}
	return env
}
