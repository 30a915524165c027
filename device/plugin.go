// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

// Name is the plugin's name, and that of its binary.
const Name = config.PluginName

// Plugin is Nomad's device plugin.
type Plugin struct {
	log hclog.Logger
	ctx context.Context
	// agent is the process of Nomad's client that started this one.
	agent procs.Process
	used  atomic.Bool

	mu      sync.Mutex
	service *service

	outdated chan struct{}
	end      sync.Once // closes outdated
}

var _ device.DevicePlugin = (*Plugin)(nil)

// NewPlugin makes a plugin that does nothing before SetConfig. It ends with the
// context.
func NewPlugin(ctx context.Context, log hclog.Logger) *Plugin {
	agent, _ := procs.Find(os.Getppid()) // nothing where the agent has ended
	return &Plugin{log: log.Named("gpu"), ctx: ctx, agent: agent, outdated: make(chan struct{})}
}

// Used reports whether Nomad has asked for the GPUs: by then it has written down the
// plugin's process, and ends it when a later client starts.
func (p *Plugin) Used() bool { return p.used.Load() }

// Outdated is closed when only a new process can serve this machine, because its
// driver was upgraded: the plugin's process is to end, and Nomad starts it again.
// Its state, MPS daemons too, outlives it.
func (p *Plugin) Outdated() <-chan struct{} { return p.outdated }

// PluginInfo tells Nomad what the plugin is.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDevice,
		PluginApiVersions: []string{device.ApiVersion010},
		PluginVersion:     version.String(),
		Name:              Name,
	}, nil
}

// ConfigSchema is the schema of the plugin's configuration.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return config.Schema, nil }

// SetConfig checks the configuration and prepares to work by it. The work begins
// with the first Fingerprint. A second call ends what went before.
func (p *Plugin) SetConfig(c *base.Config) error {
	checked, err := config.Decode(c.PluginConfig)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.service != nil {
		p.service.end()
		p.service = nil
	}
	if !checked.Enabled {
		return nil
	}
	p.service, err = openService(p.log, checked, func() { p.end.Do(func() { close(p.outdated) }) })
	return err
}

// Close ends the plugin's work. MPS daemons go on: tasks depend on them.
func (p *Plugin) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.service != nil {
		p.service.end()
		p.service = nil
	}
}

// configured returns the service, at work or not.
func (p *Plugin) configured() (*service, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.service == nil {
		return nil, device.ErrPluginDisabled
	}
	return p.service, nil
}

// Fingerprint sends the device groups now and whenever they change. It never
// sends an error, since Nomad would drop every device of the node; a fault
// is reported with the devices that it concerns.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	s, err := p.configured()
	if err != nil {
		return nil, err
	}
	p.used.Store(true)
	s.begin(p.ctx, p.agent)
	published := s.reconciler.published
	out := make(chan *device.FingerprintResponse)
	go func() {
		defer close(out)
		for {
			latest, changed := published.current()
			if latest != nil {
				select {
				case out <- device.NewFingerprint(latest.groups...):
				case <-ctx.Done():
					return
				case <-p.ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-p.ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// errEarly means that Nomad asks for devices it has not been told of yet.
var errEarly = errors.New("reserve: the GPUs of this node are not known yet; try again in a moment")

// Reserve hands instances out, from the last publication.
func (p *Plugin) Reserve(ids []string) (*device.ContainerReservation, error) {
	s, err := p.configured()
	if err != nil {
		return nil, err
	}
	s.reconciler.published.reserving.RLock()
	defer s.reconciler.published.reserving.RUnlock()
	latest := s.reconciler.published.latest.Load()
	if latest == nil {
		return nil, errEarly
	}
	made, given, err := latest.index.Reserve(ids)
	if err != nil {
		return nil, err
	}
	if err := s.reconciler.preparer.Reserve(latest.units, made); err != nil {
		return nil, err
	}
	s.reconciler.reservations.Add(made, s.reconciler.now())
	s.reconciler.wake.pull()
	return given, nil
}

// Stats sends measurements at an interval.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan *device.StatsResponse, error) {
	s, err := p.configured()
	if err != nil {
		return nil, err
	}
	out := make(chan *device.StatsResponse)
	go func() {
		defer close(out)
		tick := time.NewTicker(max(interval, time.Second))
		defer tick.Stop()
		for {
			select {
			case out <- &device.StatsResponse{Groups: s.monitor.Stats()}:
			case <-ctx.Done():
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
