// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// A login that cannot be looked up stops the pull: without it another image of the same
// name could be had, or a refusal without its cause.
func TestLoginsThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for says, operator := range map[string]config.AuthConfig{
		"read auth.config: ":                                 {Config: filepath.Join(dir, "none")},
		"read auth.config " + filepath.Join(dir, "cut"):      {Config: file("cut", `{"auths":`)},
		"find login for a.example in auth.config: ":          {Config: file("helper", `{"credHelpers":{"a.example":"of-nowhere"}}`)},
		`ask credential helper "of-nowhere" about a.example`: {Helper: "of-nowhere"},
	} {
		_, _, err := credentialsFor(taskconfig.Auth{}, "a.example", nil, operator)("a.example")
		must.ErrorContains(t, err, says)
	}
}

// Nothing is reaped by leases that cannot be read.
func TestLeasesThatCannotBeRead(t *testing.T) {
	d, env := alone(t)
	must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, "leases", "cut.json"), []byte("{"), 0o600))
	must.Error(t, d.reapLeases(t.Context(), env.runtime, time.Now()))
	must.Error(t, d.reap(env.runtime, env.settings, time.Now(), time.Now()), must.Sprint("a round that was not complete"))
}

// A share is computed of what is known for certain, or the task does not start.
func TestSharesThatCannotBeComputed(t *testing.T) {
	_, env := alone(t)
	task := func(devices ...gpu.ReservedDevice) *drivers.TaskConfig {
		cfg := &drivers.TaskConfig{Env: map[string]string{}}
		for _, device := range devices {
			reserveDevice(device)(cfg)
		}
		return cfg
	}
	device := gpu.ReservedDevice{UUID: gpuA, Mode: gpu.ModeSlice, Slices: []int{0}, Of: 16, MemoryMiB: 1024, Milli: 62, BurstMilli: 900}
	cfg := task(device)
	for key := range cfg.DeviceEnv {
		cfg.DeviceEnv[key] = "no reservation"
	}
	_, err := shareOf(cfg, taskconfig.Config{}, env.state)
	must.Error(t, err)
	other := device
	other.Slices, other.Of = []int{1}, 8
	_, err = shareOf(task(device, other), taskconfig.Config{}, env.state)
	must.Error(t, err, must.Sprint("two reservations that contradict each other"))
	_, err = shareOf(task(device), taskconfig.Config{GPU: taskconfig.GPUConfig{Memory: "much"}}, env.state)
	must.ErrorContains(t, err, "much")
	must.NoError(t, os.WriteFile(filepath.Join(env.settings.StateDir, "gpus", gpuA+".json"), []byte("{"), 0o600))
	_, err = shareOf(task(device), taskconfig.Config{}, env.state)
	must.True(t, structs.IsRecoverable(recoverable(err)), must.Sprint(err))
}

// What contradicts itself in a task's network is refused by its key.
func TestNetworksThatCannotBe(t *testing.T) {
	_, _, err := portMappings(&drivers.TaskConfig{}, []string{"http"})
	must.ErrorContains(t, err, `ports: "http" is not a port of the group's network block`)
	ports := structs.AllocatedPorts{{Label: "http", Value: 20000, To: 80}, {Label: "same", Value: 20001}}
	cfg := &drivers.TaskConfig{Resources: &drivers.Resources{Ports: &ports}}
	_, _, err = portMappings(cfg, []string{"http", "none"})
	must.ErrorContains(t, err, `ports: "none" is not a port`)
	mapped, names, err := portMappings(cfg, []string{"http", "same"})
	must.NoError(t, err)
	must.Eq(t, map[string]int{"http": 80, "same": 20001}, names)
	must.Len(t, 4, mapped)
	must.Eq(t, 20001, mapped[2].ContainerPort)

	_, err = defaultRoute("Iface Destination Gateway\neth0 00000000 nonsense\n")
	must.ErrorContains(t, err, `gateway "nonsense" is not an address`)
	_, err = defaultRoute("Iface Destination Gateway\neth0 00000000 0102\n")
	must.ErrorContains(t, err, `gateway "0102" is not an address`)
}

// A namespace is held of a process that runs, and of none else.
func TestNamespacesOfProcessesThatDoNotRun(t *testing.T) {
	for says, status := range map[string]func() (runtime.Status, error){
		"ask":                func() (runtime.Status, error) { return runtime.Status{}, os.ErrPermission },
		errJustEnded.Error(): func() (runtime.Status, error) { return runtime.Status{PID: os.Getpid()}, nil },
		"no such file":       func() (runtime.Status, error) { return runtime.Status{Running: true, PID: 1 << 30}, nil },
	} {
		_, err := holdNamespace("net", status)
		if says == "ask" {
			must.ErrorIs(t, err, os.ErrPermission)
			continue
		}
		must.ErrorContains(t, err, says)
	}
	must.ErrorContains(t, selfOf{}.Mine(0), "process 0 is not the task's: the driver does not see it")
	foreign := selfOf{nil, &task{record: record.Record{Lease: gpu.Lease{Container: "box", Cgroup: "/nowhere/box"}}}}
	must.ErrorContains(t, foreign.Mine(1), "process 1 is not the task's: it is not in the task's control group")
	must.ErrorContains(t, foreign.Mine(noProcess), "no such file")
}
