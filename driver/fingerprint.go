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
	return &drivers.Fingerprint{
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
}
