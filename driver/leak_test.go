// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
)

// TestShutdownEndsEveryGoroutine runs a task with everything that watches it,
// and expects silence after Shutdown. Other tests have goroutines too, so it runs
// alone.
func TestShutdownEndsEveryGoroutine(t *testing.T) {
	forEachContainerdAlone(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
		// The harness's driver and connections come and go in the background, and a loop
		// that has not run yet may begin its own goroutines later.
		endHarness(e.harness)
		e.driver.Shutdown()
		before := goleak.IgnoreCurrent()
		d := New(context.Background(), hclog.NewNullLogger())
		var data []byte
		must.NoError(t, base.MsgPackEncode(&data, e.config))
		must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data}))
		health, err := d.Fingerprint(context.Background())
		must.NoError(t, err)
		must.Eq(t, drivers.HealthStateHealthy, (<-health).Health)
		_, _, err = d.StartTask(cfg)
		must.NoError(t, err)
		_, err = d.WaitTask(context.Background(), cfg.ID)
		must.NoError(t, err)
		stats, err := d.TaskStats(context.Background(), cfg.ID, time.Second)
		must.NoError(t, err)
		must.NotNil(t, <-stats)
		_, err = d.ExecTask(cfg.ID, []string{"true"}, callTimeout)
		must.NoError(t, err)
		ended, err := d.WaitTask(context.Background(), cfg.ID)
		must.NoError(t, err)
		d.Shutdown()
		_, open := <-ended
		must.False(t, open)
		noGoroutineStays(t, before)
		e.startDriver()
		e.sweepTask(cfg)
	})
}

// endHarness is the harness's Kill without its data race: that one stops its server
// twice at once, since the client's end stops it, too.
func endHarness(h *dtestutil.DriverHarness) {
	client := reflect.ValueOf(h).Elem().FieldByName("client")
	_ = (*(**plugin.GRPCClient)(client.Addr().UnsafePointer())).Close()
}

// noGoroutineStays waits until there are no goroutines but those that are ignored.
func noGoroutineStays(t *testing.T, ignored ...goleak.Option) {
	t.Helper()
	must.NoError(t, leaktest.Find(ignored...))
}

// sweepTask removes a task that another driver started.
func (e *env) sweepTask(cfg *drivers.TaskConfig) {
	e.t.Helper()
	must.NoError(e.t, e.driver.DestroyTask(cfg.ID, true))
}
