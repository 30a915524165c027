// SPDX-License-Identifier: MPL-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sim/dcmi"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

// standIn builds the MPS control program once per test run.
var standIn = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nomad-gpu-mps")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nvidia-cuda-mps-control")
	out, err := exec.Command("go", "build", "-o", path, "./sim/nvidia-cuda-mps-control").CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return path, nil
})

// encode turns HCL into what Nomad hands to SetConfig.
func encode(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := agentconfig.Encode(config.Schema, text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// rig is a plugin on a simulated machine, in directories of its own.
type rig struct {
	*Plugin
	t   *testing.T
	dir string
	// mps is what a test adds to the mps block.
	mps string
	// branch is the driver branch that the MPS control program stands in for.
	branch string
	// interval is that of surveys, in place of a short one.
	interval string
	// firstWait is for MPS daemons before the first fingerprint, in place of the usual one.
	firstWait time.Duration
	// client stands in for the state of Nomad's client.
	client func() (*plan.Client, error)
}

// newRig is for a test that runs beside others: they mostly wait.
func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return nextRig(t)
}

// nextRig is for a test that runs alone, or has a rig already.
func nextRig(t *testing.T) *rig { return &rig{t: t, dir: tmpfs.Dir(t)} }

// start runs the plugin with a configuration to which the rig adds its
// directories. A second start is a restart.
func (r *rig) start(topology, config string) {
	r.t.Helper()
	if r.Plugin != nil {
		r.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.Plugin = NewPlugin(ctx, hclog.New(&hclog.LoggerOptions{Output: testWriter{r.t}, Level: hclog.Debug}))
	r.t.Cleanup(func() { r.Close(); cancel(); r.endDaemons() })
	raw := encode(r.t, r.config(topology, config))
	if err := r.SetConfig(&base.Config{PluginConfig: raw}); err != nil {
		r.t.Fatal(err)
	}
	if r.service != nil {
		if r.client != nil {
			r.service.reconciler.inputs.client = r.client
		}
		r.service.reconciler.published.wait = cmp.Or(r.firstWait, firstWait)
		r.service.begin(ctx, procs.Process{})
	}
}

// config is what start hands to the plugin.
func (r *rig) config(topology, config string) string {
	r.t.Helper()
	topology, err := filepath.Abs(topology)
	if err != nil {
		r.t.Fatal(err)
	}
	control, err := standIn()
	if err != nil {
		r.t.Fatal(control, err)
	}
	if r.branch != "" {
		of := filepath.Join(filepath.Dir(control), r.branch, filepath.Base(control))
		if err := errors.Join(os.MkdirAll(filepath.Dir(of), 0o755), link(control, of)); err != nil {
			r.t.Fatal(err)
		}
		control = of
	}
	library, err := dcmi.Once()
	if err != nil {
		r.t.Fatal(err)
	}
	return config + `
		state_dir = "` + r.dir + `/run"
		data_dir  = "` + r.dir + `/data"
		mps {
			control = "` + control + `"
			` + r.mps + `
		}
		health {
			interval = "` + cmp.Or(r.interval, "100ms") + `"
			measure  = "100ms"
			timeout  = "1s"
		}
		simulation {
			topology = "` + topology + `"
			dir      = "` + r.dir + `/sim"
			dcmi     = "` + library + `"
		}`
}

// link is os.Link, which may have been done before.
func link(old, as string) error {
	if err := os.Link(old, as); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// until reads fingerprints until one is as wanted.
func (r *rig) until(what string, wanted func([]*device.DeviceGroup) bool) []*device.DeviceGroup {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := r.Fingerprint(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	var last []*device.DeviceGroup
	for f := range stream {
		if f.Error != nil {
			r.t.Fatalf("an error on the fingerprint stream: %v", f.Error)
		}
		if last = f.Devices; wanted(last) {
			return last
		}
	}
	r.t.Fatalf("gave up waiting until %s; last: %s", what, describeGroups(last))
	return nil
}

// listen waits until the plugin hears what happens on a GPU: events are told to who
// has registered before. The XID that it uses is the application's fault.
func (r *rig) listen(uuid string) {
	r.t.Helper()
	for r.service.reconciler.health.LastXID(uuid) == 0 {
		r.happen(uuid, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 13) })
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.t.Context().Done():
			r.t.Fatal("gave up waiting for an event")
		}
	}
}

// endDaemons kills the MPS daemons that the plugin leaves behind by design, with
// their servers and gates, and unmounts their shared memory.
func (r *rig) endDaemons() {
	mounts, _ := filepath.Glob(filepath.Join(r.dir, "run/mps/*/shm"))
	for _, path := range mounts {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		text, _ := os.ReadFile(path)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && strings.Contains(string(text), "CUDA_MPS_PIPE_DIRECTORY="+r.dir+"/run/mps/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
