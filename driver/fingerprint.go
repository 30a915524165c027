// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

const (
	fingerprintPeriod  = 5 * time.Second
	fingerprintTimeout = 3 * time.Second
	// maxLate is how many times in a row containerd may be late before it does not
	// answer: on a busy machine one answer takes long, and it is well.
	maxLate = 6
)

// Fingerprint reports whether containerd answers, whenever that changes.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	d.used.Store(true)
	ch := make(chan *drivers.Fingerprint)
	d.work.start(func() { d.fingerprintLoop(ctx, ch) })
	return ch, nil
}

// Used reports whether Nomad has asked how the driver is: by then it has written down the
// driver's process, and its next client takes that over.
func (d *Driver) Used() bool { return d.used.Load() }

func (d *Driver) fingerprintLoop(ctx context.Context, ch chan<- *drivers.Fingerprint) {
	defer close(ch)
	tick := time.Tick(fingerprintPeriod)
	var last string
	late := 0
	for {
		next, answered := d.fingerprint(ctx)
		if ctx.Err() != nil {
			return
		}
		if late++; answered {
			late = 0
		}
		now := string(next.Health) + next.HealthDescription + d.dataDir.get()
		if now != last && (answered || late >= maxLate) {
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
		case <-tick:
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		}
	}
}

// fingerprint looks at the node once, and reports whether containerd has answered, or is
// gone: while an answer is out nothing is known yet.
func (d *Driver) fingerprint(ctx context.Context) (found *drivers.Fingerprint, answered bool) {
	n, err := d.configured()
	if err != nil {
		return &drivers.Fingerprint{Health: drivers.HealthStateUndetected, HealthDescription: "disabled in the plugin config"}, true
	}
	ctx, cancel := context.WithTimeout(ctx, fingerprintTimeout)
	defer cancel()
	containerd, err := n.runtime.Version(ctx)
	if err == nil {
		err = checkSnapshotter(ctx, n.runtime, n.settings.Snapshotter)
	}
	if errors.Is(err, errUnknownSnapshotter) {
		return unhealthy("plugin config: " + err.Error()), true
	}
	if err != nil {
		d.logger.Debug("containerd does not answer", "error", err)
		return unhealthy("containerd does not answer at " + n.settings.Socket + "; running tasks go on, new ones wait until it is back"), !listens(n.settings.Socket)
	}
	fingerprint := &drivers.Fingerprint{
		Health:            drivers.HealthStateHealthy,
		HealthDescription: drivers.DriverHealthy,
		Attributes: map[string]*pstructs.Attribute{
			healthyAttribute:                       pstructs.NewBoolAttribute(true),
			"driver.containerd":                    pstructs.NewBoolAttribute(true),
			"driver.containerd.version":            pstructs.NewStringAttribute(version.String()),
			"driver.containerd.containerd_version": pstructs.NewStringAttribute(containerd),
			"driver.containerd.namespace":          pstructs.NewStringAttribute(n.settings.Namespace),
			"driver.containerd.volumes.enabled":    pstructs.NewBoolAttribute(n.settings.Volumes.Enabled),
			"driver.containerd.privileged.enabled": pstructs.NewBoolAttribute(n.settings.AllowPrivileged),
			"driver.containerd.gpu.watchdog":       pstructs.NewStringAttribute(n.settings.GPU.Watchdog),
		},
	}
	if safe := d.dataDir.get(); safe != "" {
		fingerprint.Attributes["driver.containerd.data_dir_safe"] = pstructs.NewStringAttribute(safe)
	}
	d.describeRunc(ctx, n, fingerprint)
	return fingerprint, true
}

// healthyAttribute makes nodes with a healthy driver another class than those without.
// Nomad keeps which classes have no room for a job, and looks at them again when they
// change; a driver's health alone does not change them, so that a job submitted while
// the driver is unhealthy would wait for good.
const healthyAttribute = "driver.containerd.healthy"

func unhealthy(why string) *drivers.Fingerprint {
	return &drivers.Fingerprint{Health: drivers.HealthStateUnhealthy, HealthDescription: why,
		Attributes: map[string]*pstructs.Attribute{healthyAttribute: pstructs.NewBoolAttribute(false)}}
}

// listens reports whether a process has the socket: an error of a call does not tell a
// daemon that is late from one that is gone.
func listens(socket string) bool {
	connection, err := net.Dial("unix", socket)
	if err == nil {
		connection.Close()
	}
	// EAGAIN is a queue of connections that is full.
	return err == nil || errors.Is(err, unix.EAGAIN)
}

// describeRunc adds the attributes of the runc that containers are started with.
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
