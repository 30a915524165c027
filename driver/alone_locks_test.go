// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"sync"
	"testing"
	"time"

	cstructs "github.com/hashicorp/nomad/client/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	driverruntime "github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/locktest"
)

// What several goroutines use is used under its lock: whoever holds it is waited for.
// Without that, two tasks get the last of a GPU, or a map is read while it is written.
func TestWhatIsSharedIsLocked(t *testing.T) {
	d, env := alone(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	lease := gpu.Lease{ID: "mine", Container: "box", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, Partition: &gpu.Partition{ID: "p", Chunks: 1}}}}
	one := known(d, env, lease)
	device, _ := d.seats.device(gpuA)
	cfg := &drivers.TaskConfig{ID: "begun", JobID: "job"}
	_, over, err := d.starts.begin(t.Context(), cfg)
	must.NoError(t, err)
	var block config.Config
	parse(t, config.Schema, `enabled = false`, &block)
	var disabled []byte
	must.NoError(t, base.MsgPackEncode(&disabled, block))
	for _, row := range []struct {
		of    string
		lock  sync.Locker
		calls []func()
	}{
		{"driver", &d.mu, []func(){
			func() { _, _ = d.Capabilities() }, func() { _ = d.SetConfig(&base.Config{PluginConfig: disabled}) }, func() { d.use(env) }, func() { _, _ = d.configured() },
			func() { d.statsLoop(ended, one, time.Hour, make(chan *cstructs.TaskResourceUsage)) },
		}},
		{"work", &d.work.mu, []func(){func() { d.work.start(func() {}) }, d.work.wait}},
		{"counts", &d.counts.mu, []func(){func() { d.counts.kill(errLost) }, func() { _ = d.counts.save(env.state) }}},
		{"dataDir", &d.dataDir.mu, []func(){func() { d.dataDir.get() }, func() { d.dataDir.look("/") }}},
		{"runc", &d.runc.mu, []func(){func() { _, _ = d.runc.get(ended, env.runtime) }}},
		{"partitions", &d.partitions, []func(){
			func() { _ = d.takePartition(ended, &startPlan{env: env, record: record.Record{Lease: lease}}) },
			func() { _ = d.removePartition(ended, env, lease.Holdings[0], "box") },
		}},
		{"seats", &d.seats.mu, []func(){
			func() { d.seats.known(gpuA) }, func() { d.seats.device(gpuB) }, func() { d.seats.othersMiB(gpuA) }, func() { d.seats.noteHost(device, 1) },
			func() { d.seats.setReady("mine", true) }, func() { d.seats.isReady("mine") }, func() { d.seats.ask("mine", "") }, func() { d.seats.asked("mine", true) },
		}},
		{"device", &device.mu, []func(){func() { _ = d.seatStep(env.state, gpuA, device) }}},
		{"view", &d.selfView.mu, []func(){func() { _, _, _ = d.selfView.read(env.state) }}},
		{"saved", &one.saved.mu, []func(){func() { one.saved.note(time.Now(), 0, func(time.Time) {}) }, func() { one.saved.stop() }}},
		{"starts", &d.starts.mu, []func(){
			func() { _ = d.starts.enter(t.Context(), cfg) }, func() { d.starts.leave(cfg) }, func() { d.starts.since(time.Now()) }, func() { d.starts.calledBy(ended, "next")() },
			func() { _, _, _ = d.starts.begin(t.Context(), &drivers.TaskConfig{ID: "next"}) }, over,
		}},
		{"tasks", &d.tasks.mu, []func(){
			func() { d.tasks.put(one) }, func() { _, _ = d.tasks.get("known") }, func() { d.tasks.find("", "") }, func() { d.tasks.changed() }, func() { d.tasks.remove("none") }, func() { d.tasks.all() },
		}},
		{"task", &one.mu, []func(){
			func() { one.finish(driverruntime.Exit{}, nil) }, func() { one.status() }, func() { one.markKilled(errLost) }, one.clearKilled,
		}},
		{"shutdown", &d.mu, []func(){d.Shutdown}},
	} {
		t.Run(row.of, func(t *testing.T) {
			locktest.MustWait(t, row.lock, row.calls...)
		})
	}
}
