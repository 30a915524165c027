// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/clientstate"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// inputSource is where the inputs of a plan come from.
type inputSource struct {
	report       func(what string, err error)
	config       *config.Config
	registry     *registry.Registry
	cordons      registry.Flags
	reservations *occupancy.Reservations
	state        *statedir.Dir
	health       *health.Tracker
	observer     fleet.Observer
	// server tells the processes of MPS daemons.
	server func(pid int) bool
	// client reads the state of Nomad's client.
	client func() (*plan.Client, error)
	now    func() time.Time
}

// readClient reads the state of the client that started this process.
func readClient() (*plan.Client, error) {
	path, err := clientstate.Find(os.Getppid())
	if err != nil {
		return nil, fmt.Errorf("GPUs keep their layout, since no order reaches this node: %w", err)
	}
	view, err := clientstate.Read(path)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	meta, err := view.Meta()
	if err != nil {
		return nil, err
	}
	c := &plan.Client{Orders: map[string]string{}}
	for key, value := range meta {
		if uuid, order := strings.CutPrefix(key, gpu.MIGOrderMeta); order {
			c.Orders[uuid] = value
		}
	}
	c.Devices, err = view.Devices()
	return c, err
}

// gather gathers what a plan depends on.
func (s *inputSource) gather(machine hardware.Machine) plan.Inputs {
	cordons, err := s.cordons.All()
	s.report("cordons", err)
	leasesReadAt := s.now() // before it: a lease that is written meanwhile is younger
	leases, err := s.state.Leases()
	s.report("leases", err)
	if err != nil {
		leasesReadAt = time.Time{}
	}
	live, recent, reservationsErr := s.reservations.Look(leases, s.now())
	s.report("reservations", reservationsErr)
	given := occupancy.Merge(map[string]occupancy.Holder{}, recent)
	now := plan.Inputs{
		Reserved: occupancy.Merge(given, occupancy.Holders(occupancy.LiveAfter(leases, s.now()))),
		Holders:  occupancy.Merge(live, occupancy.Holders(occupancy.LiveAfter(leases, s.now()))),
		Recent:   occupancy.Merge(recent, occupancy.Holders(occupancy.LiveAfter(leases, s.now().Add(-s.config.ModeChangeDelay)))),
		Busy:     map[string]string{},
		Cordons:  cordons,
		Faults:   map[string][]gpu.Fault{},

		Tasks:        occupancy.TasksOn(occupancy.LiveAfter(leases, s.now())),
		Leases:       leases,
		LeasesReadAt: leasesReadAt,
	}
	if err == nil && s.config.FollowsDemand() {
		var unread error
		now.Client, unread = s.client()
		s.report("state of Nomad's client", unread)
	}
	for _, uuid := range s.registry.GPUs() {
		now.Faults[uuid] = s.health.Faults(uuid)
	}
	for _, g := range machine.GPUs {
		now.Faults[g.UUID] = s.health.Faults(g.UUID)
		for _, i := range g.Partitions {
			now.Faults[i.UUID] = s.health.Faults(i.UUID)
		}
		if err != nil {
			now.Busy[g.UUID] = "the leases to be read" // the holders are not known
		} else if plan.Changing(s.config, s.registry, g) {
			maps.Copy(now.Busy, occupancy.Users(s.observer, s.server, g))
		}
	}
	return now
}
