package device

import (
	"context"
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
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
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
	file, diags := hclparse.NewParser().ParseHCL([]byte(text), "test.hcl")
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	spec, diags := hclspecutils.Convert(configSchema)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	value, diags := hcldec.Decode(file.Body, spec, nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	raw, err := msgpack.Marshal(value, value.Type())
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
}

func newRig(t *testing.T) *rig {
	// Not t.TempDir: the path of an MPS socket is limited to 107 characters.
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &rig{t: t, dir: dir}
}

// start runs the plugin with a configuration to which the rig adds its
// directories. A second start is a restart.
func (r *rig) start(topology, config string) {
	r.t.Helper()
	if r.Plugin != nil {
		r.Close()
	}
	topology, err := filepath.Abs(topology)
	if err != nil {
		r.t.Fatal(err)
	}
	control, err := standIn()
	if err != nil {
		r.t.Fatal(control, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.Plugin = NewPlugin(ctx, hclog.New(&hclog.LoggerOptions{Output: testWriter{r.t}, Level: hclog.Debug}))
	r.t.Cleanup(func() { r.Close(); cancel(); r.endDaemons() })
	raw := encode(r.t, config+`
		state_dir = "`+r.dir+`/run"
		data_dir  = "`+r.dir+`/data"
		mps { control = "`+control+`" }
		health {
			interval = "100ms"
			measure  = "100ms"
			timeout  = "1s"
		}
		simulation {
			topology = "`+topology+`"
			dir      = "`+r.dir+`/sim"
		}`)
	if err := r.SetConfig(&base.Config{PluginConfig: raw}); err != nil {
		r.t.Fatal(err)
	}
	if r.service != nil {
		r.service.begin(ctx)
	}
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
	for r.service.reconciler.health.lastXID(uuid) == 0 {
		r.happen(uuid, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 13) })
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.t.Context().Done():
			r.t.Fatal("gave up waiting for an event")
		}
	}
}

// endDaemons kills the MPS daemons that the plugin leaves behind by design, and
// unmounts their shared memory.
func (r *rig) endDaemons() {
	mounts, _ := filepath.Glob(filepath.Join(r.dir, "run/mps/*/shm"))
	for _, path := range mounts {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
	files, _ := filepath.Glob(filepath.Join(r.dir, "run/mps/*/pipe/nvidia-cuda-mps-control.pid"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
