// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// limiterThat is a program in the place of the device plugin's: it notes what it is asked
// for, whether the control group is there, and how many processes it has.
func limiterThat(t *testing.T, ends string) (*gpu.MemoryLimiter, string) {
	t.Helper()
	dir := t.TempDir()
	script, notes := filepath.Join(dir, "limiter"), filepath.Join(dir, "notes")
	must.NoError(t, os.WriteFile(script, []byte(`#!/bin/sh
echo "$@ $(test -d "$3" && echo there): $(cat /proc/$(head -n1 "$3/cgroup.procs")/comm)" >>`+notes+"\n"+ends+"\n"), 0o755))
	return &gpu.MemoryLimiter{Command: []string{script, "first"}}, notes
}

func noted(t *testing.T, notes string) []string {
	t.Helper()
	text, err := os.ReadFile(notes)
	must.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// The limit is in force before anything of the task runs, and what was guaranteed is
// given back while the control group is there.
func TestMemoryOfATaskIsHeldByTheGPUsDriver(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		limiter, notes := limiterThat(t, "")
		n.publish(gpuA, func(s *gpu.GPUState) { s.Limiter = limiter })
		config := defaultTaskConfig("sleep", "1000")
		config.GPU.MemoryLimit = "3GiB"
		cfg := e.task(config, reserve(gpuA, 0, 1))
		e.start(cfg)
		leases, err := n.dir.Leases()
		must.NoError(t, err)
		group, err := cgroups.Dir(leases[0].Cgroup)
		must.NoError(t, err)
		must.Eq(t, int64(3072), leases[0].Holdings[0].MemoryLimitMiB)
		// The runtime's own process waits there: the task's program is not run yet.
		first := noted(t, notes)
		must.Len(t, 1, first)
		must.StrHasPrefix(t, "first "+gpuA+" "+group+" 2048 3072 there: ", first[0])
		must.StrNotContains(t, first[0], "sleep")
		e.end(cfg)
		all := noted(t, notes)
		must.Len(t, 2, all)
		must.StrHasPrefix(t, "first "+gpuA+" "+group+" 0 3072 there:", all[1])
	})
}

func TestTaskThatCannotBeHeldToItsMemoryDoesNotStart(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		limiter, _ := limiterThat(t, "echo no permission >&2; exit 1")
		n.publish(gpuA, func(s *gpu.GPUState) { s.Limiter = limiter })
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		_, _, err := e.harness.StartTask(cfg)
		must.ErrorContains(t, err, "could not be held to its memory: exit status 1: no permission")
		must.True(t, structs.IsRecoverable(err))
		e.nothingLeft()
	})
}
