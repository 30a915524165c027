// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

// New makes a driver that is configured by SetConfig and ends with ctx.
func New(ctx context.Context, logger hclog.Logger) *Driver {
	ctx, cancel := context.WithCancel(ctx)
	logger = logger.Named(Name)
	return &Driver{
		Eventer: eventer.NewEventer(ctx, logger), logger: logger, ctx: ctx, cancel: cancel,
		tasks: newTaskStore(), starts: newStartBook(), work: newWork(), client: os.Getppid(), steps: startSteps, watcherPatience: watcherPatience, savedEvery: savedEvery,
	}
}

// Shutdown ends what the driver does in the background, and returns when that has ended;
// tasks run on.
func (d *Driver) Shutdown() {
	d.cancel()
	d.disconnect()
	d.work.wait()
}

// disconnect ends the requests to containerd that are under way.
func (d *Driver) disconnect() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.runtime != nil {
		_ = d.runtime.Close()
	}
}

// PluginInfo tells Nomad what this is.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDriver, Name: Name,
		PluginApiVersions: []string{drivers.ApiVersion010}, PluginVersion: version.String(),
	}, nil
}

// ConfigSchema is the schema of the plugin's configuration.
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) { return config.Schema, nil }

// TaskConfigSchema is the schema of a task's config block.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) { return config.TaskSchema, nil }

// Capabilities tells Nomad what the driver can do.
func (d *Driver) Capabilities() (*drivers.Capabilities, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return &drivers.Capabilities{
		SendSignals: true,
		Exec:        true,
		FSIsolation: fsisolation.Image,
		NetIsolationModes: []drivers.NetIsolationMode{
			drivers.NetIsolationModeHost, drivers.NetIsolationModeGroup, drivers.NetIsolationModeTask,
		},
		MountConfigs:         drivers.MountConfigSupportAll,
		DisableLogCollection: d.settings.DisableLogs,
	}, nil
}

// SetConfig reads the plugin's configuration. Containerd need not be there.
func (d *Driver) SetConfig(c *base.Config) error {
	parsed, err := config.Decode(c.PluginConfig)
	written := parsed.Config
	if err != nil {
		return fmt.Errorf("plugin config: %w", err)
	}
	if !written.Enabled {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.settings = parsed
		return nil
	}
	for _, w := range written.Idle() {
		d.logger.Warn("configuration", "warning", w)
	}
	bootID, err := statedir.BootID()
	if err != nil {
		return err
	}
	state, err := statedir.Open(written.StateDir, bootID)
	if err != nil {
		return err
	}
	client, err := runtime.New(runtime.Config{
		Socket: written.Socket, Namespace: written.Namespace, Owner: written.StateDir, Snapshotter: written.Snapshotter,
		HostsDir: written.HostsDir, FIFODir: fifoDir(written), MaxImageBytes: parsed.MaxImageBytes, MaxUnpackedBytes: parsed.MaxUnpackedBytes,
		Log: d.logger.Named("client").StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	})
	if err != nil {
		return err
	}
	env := environment{settings: parsed, runtime: client, state: state, compute: computeOf(c)}
	d.use(env)
	d.leases.Open(state)
	d.starts.room.SetLimit(int(parsed.MaxStarts))
	d.loops.Do(func() {
		d.removeDestroyed(env)
		// Pipes of exec sessions whose driver died.
		if err := os.RemoveAll(fifoDir(written)); err != nil {
			d.logger.Warn("pipes of old exec sessions stay", "error", err)
		}
		d.work.start(d.reapLoop)
		d.work.start(d.wantedLoop)
		d.work.start(d.watchdogLoop)
		d.work.start(d.seatLoop)
		d.work.start(d.countsLoop)
		d.work.start(d.cpusetLoop)
	})
	return nil
}

func fifoDir(c config.Config) string { return filepath.Join(c.StateDir, "exec") }
