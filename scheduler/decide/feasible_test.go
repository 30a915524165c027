// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	nomadstate "github.com/hashicorp/nomad/nomad/state"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/scheduler/feasible"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	needs "github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// equipped is a machine with drivers and volumes, for the service and as Nomad has it.
func equipped(name string, n *api.Node) (*nomad.Node, *structs.Node) {
	n.ID, n.Name, n.Datacenter, n.NodePool, n.Status, n.SchedulingEligibility, n.ModifyIndex = "id-"+name, name, "dc1", "default", "ready", "eligible", 1
	n.NodeResources = &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024},
		Devices: []*api.NodeDeviceResource{servicetest.SlicedGPU(name, 0, 16)}}
	theirs := &structs.Node{ID: n.ID, Attributes: n.Attributes, Drivers: map[string]*structs.DriverInfo{}, HostVolumes: map[string]*structs.ClientHostVolumeConfig{}}
	for driver, d := range n.Drivers {
		theirs.Drivers[driver] = &structs.DriverInfo{Detected: d.Detected, Healthy: d.Healthy}
	}
	for volume, v := range n.HostVolumes {
		theirs.HostVolumes[volume] = &structs.ClientHostVolumeConfig{Name: volume, ReadOnly: v.ReadOnly}
	}
	return nomad.NewNode(n, nomad.Hardware{}), theirs
}

// TestNomadStartsAGroupWhereItsDriversAndVolumesAre asks Nomad's own checkers and the service
// on which nodes a group may start.
func TestNomadStartsAGroupWhereItsDriversAndVolumesAre(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	drivers, volumes := []string{"docker", "exec", "containerd"}, []string{"data", "models", "work"}
	met := map[bool]int{}
	for round := range 60 {
		var machines []*nomad.Node
		var nodes []*structs.Node
		for i := range 6 {
			n := &api.Node{Attributes: map[string]string{"kernel.name": "linux"}, Drivers: map[string]*api.DriverInfo{}, HostVolumes: map[string]*api.HostVolumeInfo{}}
			for _, d := range drivers {
				switch r.IntN(8) {
				case 0: // it has none
				case 1:
					n.Attributes["driver."+d] = []string{"1", "0", "true", "yes"}[r.IntN(4)]
				default:
					n.Drivers[d] = &api.DriverInfo{Detected: r.IntN(5) > 0, Healthy: r.IntN(5) > 0}
					n.Attributes["driver."+d], n.Attributes["driver."+d+".version"] = "1", "1.2"
				}
			}
			for _, v := range volumes {
				if r.IntN(3) > 0 {
					n.HostVolumes[v] = &api.HostVolumeInfo{ReadOnly: r.IntN(3) == 0}
				}
			}
			ours, theirs := equipped(fmt.Sprintf("n%d", i), n)
			machines, nodes = append(machines, ours), append(nodes, theirs)
		}
		s := servicetest.New(t, "", machines...)
		store := nomadstate.TestStateStore(t)
		ctx := feasible.NewEvalContext(nil, store, &structs.Plan{}, hclog.NewNullLogger())
		for range 10 {
			a := servicetest.Ask(fmt.Sprintf("job%d", round), "1", 1)
			asked, requested := map[string]struct{}{}, map[string]*structs.VolumeRequest{}
			for _, d := range drivers {
				if r.IntN(3) == 0 {
					a.Drivers, asked[d] = append(a.Drivers, d), struct{}{}
				}
			}
			for _, v := range volumes {
				if r.IntN(3) == 0 {
					read := r.IntN(2) == 0
					a.Volumes = append(a.Volumes, admit.Volume{Type: "host", Source: v, ReadOnly: read})
					requested[v] = &structs.VolumeRequest{Name: v, Type: "host", Source: v, ReadOnly: read}
				}
			}
			checker := feasible.NewHostVolumeChecker(ctx)
			checker.SetVolumes("job.g[0]", "default", a.JobID, "g", requested)
			s.State.Do(func(tx *state.Tx) {
				need := needs.NeedOf(tx, &record.Group{Ask: a})
				for _, n := range nodes {
					want := feasible.NewDriverChecker(ctx, asked).Feasible(n) && checker.Feasible(n)
					met[want]++
					if got := need.Node.AdmittedBy(&tx.Cluster.Node(n.ID).Plan); got != want {
						t.Errorf("%v and %+v on a node with %+v, %v, %+v: %v, to Nomad %v", a.Drivers, a.Volumes, n.Drivers, n.Attributes, n.HostVolumes, got, want)
					}
				}
			})
		}
	}
	if met[true] < 100 || met[false] < 100 {
		t.Errorf("the nodes that do and those that do not: %v", met)
	}
}

// What a group needs of a node beside its attributes rules nodes out; what it may have
// tomorrow is no reason to refuse the job.
func TestAJobWaitsForADriverOrAVolume(t *testing.T) {
	healthy := map[string]*api.DriverInfo{"docker": {Detected: true, Healthy: true}}
	for name, row := range map[string]struct {
		node  api.Node
		ask   func(a *admit.Ask)
		waits bool
	}{
		"a driver":                   {api.Node{Drivers: healthy}, func(a *admit.Ask) { a.Drivers = []string{"docker"} }, false},
		"a driver that is not there": {api.Node{Drivers: healthy}, func(a *admit.Ask) { a.Drivers = []string{"docker", "exec"} }, true},
		"no driver at all":           {api.Node{Drivers: map[string]*api.DriverInfo{}}, func(a *admit.Ask) { a.Drivers = []string{"docker"} }, true},
		"a driver that is not well":  {api.Node{Drivers: map[string]*api.DriverInfo{"docker": {Detected: true}}}, func(a *admit.Ask) { a.Drivers = []string{"docker"} }, true},
		"nothing is said of drivers": {api.Node{}, func(a *admit.Ask) { a.Drivers = []string{"docker"} }, false},
		"a volume":                   {api.Node{}, func(a *admit.Ask) { a.Volumes = []admit.Volume{{Type: "host", Source: "data"}} }, true},
		"one for each alloc": {api.Node{HostVolumes: map[string]*api.HostVolumeInfo{"data[0]": {}}},
			func(a *admit.Ask) { a.Volumes = []admit.Volume{{Type: "host", Source: "data", PerAlloc: true}} }, false},
		"one for each alloc of others": {api.Node{HostVolumes: map[string]*api.HostVolumeInfo{"data[1]": {}}},
			func(a *admit.Ask) { a.Volumes = []admit.Volume{{Type: "host", Source: "data", PerAlloc: true}} }, true},
		"a CSI volume without a plugin": {api.Node{}, func(a *admit.Ask) { a.Volumes = []admit.Volume{{Type: "csi", Source: "disk"}} }, true},
		"a CSI volume with one that is not well": {api.Node{CSINodePlugins: map[string]*api.CSIInfo{"ebs": {}}},
			func(a *admit.Ask) { a.Volumes = []admit.Volume{{Type: "csi", Source: "disk"}} }, true},
		"a CSI volume": {api.Node{CSINodePlugins: map[string]*api.CSIInfo{"ebs": {Healthy: true}}},
			func(a *admit.Ask) { a.Volumes = []admit.Volume{{Type: "csi", Source: "disk"}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			node, _ := equipped("a", &row.node)
			s := servicetest.New(t, "", node)
			a := servicetest.Ask("job", "1", 1)
			row.ask(&a)
			d := s.Submit(t, a)
			if waits := len(d.Preferred) == 0; waits != row.waits {
				t.Errorf("decided %+v, want it to wait: %v", d, row.waits)
			}
			if len(d.Bounds) > 0 {
				t.Errorf("the job is to be bound to %+v", d.Bounds)
			}
		})
	}
}

// A node that gets what it lacked, or loses what it had, is looked at anew.
func TestADriverThatComesAndGoes(t *testing.T) {
	with, _ := equipped("a", &api.Node{Drivers: map[string]*api.DriverInfo{"docker": {Detected: true, Healthy: true}}})
	without, _ := equipped("a", &api.Node{Drivers: map[string]*api.DriverInfo{}})
	s := servicetest.New(t, "", with)
	a := servicetest.Ask("job", "1", 1)
	a.Drivers = []string{"docker"}
	for n, node := range []*nomad.Node{with, without, with} {
		s.State.Apply([]nomad.Change{{Node: node}}, uint64(20+n))
		s.State.Do(func(tx *state.Tx) {
			need := needs.NeedOf(tx, &record.Group{Ask: a})
			if got, want := need.Node.AdmittedBy(&tx.Cluster.Node("id-a").Plan), node == with; got != want {
				t.Errorf("%d: it may run there: %v", n, got)
			}
			if len(need.Node.Constraints) > 0 && node == with {
				t.Errorf("%d: every node meets %+v, and it tells nodes apart", n, need.Node.Constraints)
			}
		})
	}
}
