package driver

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
)

// TestShutdownEndsEveryGoroutine runs a task with everything that watches it,
// and expects silence after Shutdown. Other tests have goroutines too, so it runs
// alone.
func TestShutdownEndsEveryGoroutine(t *testing.T) {
	if testing.Short() {
		t.Skip("Nomad's driver harness, which must be gone here, has a data race in its Kill; make race runs short tests")
	}
	forEachContainerdAlone(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
		// The harness's driver and connections come and go in the background, and a loop
		// that has not run yet may begin its own goroutines later.
		e.harness.Kill()
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
