package driver

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

const (
	fingerprintPeriod  = 5 * time.Second
	fingerprintTimeout = 3 * time.Second
)

// Fingerprint reports whether containerd answers, whenever that changes.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	ch := make(chan *drivers.Fingerprint)
	go d.fingerprintLoop(ctx, ch)
	return ch, nil
}

func (d *Driver) fingerprintLoop(ctx context.Context, ch chan<- *drivers.Fingerprint) {
	defer close(ch)
	ticker := time.NewTicker(fingerprintPeriod)
	defer ticker.Stop()
	var last string
	for {
		next := d.fingerprint(ctx)
		if ctx.Err() != nil {
			return
		}
		if now := string(next.Health) + next.HealthDescription; now != last {
			last = now
			select {
			case ch <- next:
			case <-ctx.Done():
				return
			case <-d.ctx.Done():
				return
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Driver) fingerprint(ctx context.Context) *drivers.Fingerprint {
	n, err := d.configured()
	if err != nil {
		return &drivers.Fingerprint{Health: drivers.HealthStateUndetected, HealthDescription: "disabled in the plugin config"}
	}
	ctx, cancel := context.WithTimeout(ctx, fingerprintTimeout)
	defer cancel()
	containerd, err := n.runtime.Version(ctx)
	if err != nil {
		d.logger.Debug("containerd does not answer", "error", err)
		return &drivers.Fingerprint{
			Health:            drivers.HealthStateUnhealthy,
			HealthDescription: "containerd does not answer at " + n.settings.Socket + "; running tasks go on, new ones wait until it is back",
		}
	}
	if err := checkSnapshotter(ctx, n.runtime, n.settings.Snapshotter); err != nil {
		return &drivers.Fingerprint{Health: drivers.HealthStateUnhealthy, HealthDescription: "plugin config: " + err.Error()}
	}
	fingerprint := &drivers.Fingerprint{
		Health:            drivers.HealthStateHealthy,
		HealthDescription: drivers.DriverHealthy,
		Attributes: map[string]*pstructs.Attribute{
			"driver.containerd":                    pstructs.NewBoolAttribute(true),
			"driver.containerd.version":            pstructs.NewStringAttribute(version.String()),
			"driver.containerd.containerd_version": pstructs.NewStringAttribute(containerd),
			"driver.containerd.namespace":          pstructs.NewStringAttribute(n.settings.Namespace),
			"driver.containerd.volumes.enabled":    pstructs.NewBoolAttribute(n.settings.Volumes.Enabled),
			"driver.containerd.privileged.enabled": pstructs.NewBoolAttribute(n.settings.AllowPrivileged),
			"driver.containerd.gpu.watchdog":       pstructs.NewStringAttribute(n.settings.GPU.Watchdog),
		},
	}
	d.describeRunc(ctx, n, fingerprint)
	return fingerprint
}

// describeRunc adds what is known of the runc that containers are started with.
func (d *Driver) describeRunc(ctx context.Context, env environment, f *drivers.Fingerprint) {
	if env.settings.ContainerdRuntime != runcRuntime {
		return
	}
	version, err := d.runc.get(ctx, env.runtime)
	if err != nil {
		d.logger.Debug("the version of runc is not known", "error", err)
		return
	}
	safe, why := judgeRunc(version)
	f.Attributes["driver.containerd.runc_version"] = pstructs.NewStringAttribute(version.Version)
	f.Attributes["driver.containerd.runc_safe"] = pstructs.NewStringAttribute(string(safe))
	if why != "" {
		f.HealthDescription += "; " + why
	}
}

// runcRuntime is containerd's name of the runtime that is runc.
const runcRuntime = "io.containerd.runc.v2"
