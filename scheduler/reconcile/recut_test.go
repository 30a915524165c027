// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// cutterNode stands for a node with one GPU, cut into seven, and takes orders.
type cutterNode struct {
	told  gpu.MIGDemand
	meta  map[string]string
	fails bool
	got   []gpu.MIGOrder
	index uint64
	back  int // how often an order was taken back
}

func newCutterNode() *cutterNode {
	c := &cutterNode{meta: map[string]string{}, index: 10, told: gpu.MIGDemand{GPU: "GPU-1", AtOnce: 1, PerDay: 24, Profiles: []gpu.MIGProfile{
		{Name: "1g.10gb", Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 7, Allowed: true},
		{Name: "3g.40gb", Size: 4, Starts: []int{0, 4}, Most: 2, Allowed: true},
	}}}
	for start := range 7 {
		c.told.Instances = append(c.told.Instances, gpu.MIGInstance{UUID: "MIG-" + string(rune('0'+start)), MIGPlace: gpu.MIGPlace{Profile: "1g.10gb", Start: start}})
	}
	return c
}

func (c *cutterNode) Recut(_ context.Context, nodeID, uuid string, order *gpu.MIGOrder) error {
	if order == nil {
		delete(c.meta, gpu.MIGOrderMeta+uuid)
		c.back++
		return nil
	}
	c.got = append(c.got, *order)
	if c.fails {
		return errors.New("permission denied")
	}
	c.meta[gpu.MIGOrderMeta+uuid] = order.String()
	return nil
}

// show has a state know the node as it is now.
func (c *cutterNode) show(s *state.State) {
	text := gpu.FormatMIGDemand([]gpu.MIGDemand{c.told})
	groups := map[string]*api.NodeDeviceResource{}
	n := &api.Node{ID: "n1", Name: "n1", NodePool: "default", Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible", Meta: c.meta,
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 64000}}}
	for _, i := range c.told.Instances {
		g := groups[i.Profile]
		if g == nil {
			g = &api.NodeDeviceResource{Vendor: "nvidia", Type: "mig", Name: i.Profile, Attributes: map[string]*api.Attribute{gpu.AttrMIGDemand: word(text), "profile": word(i.Profile)}}
			groups[i.Profile] = g
			n.NodeResources.Devices = append(n.NodeResources.Devices, g)
		}
		g.Instances = append(g.Instances, &api.NodeDevice{ID: i.UUID, Healthy: true})
	}
	c.index++
	n.ModifyIndex = c.index
	s.Apply([]nomad.Change{{Node: nomad.NewNode(n, nomad.Hardware{})}}, c.index)
}

// waitsFor has a state know a job of plain Nomad that waits for an instance.
func (c *cutterNode) waitsFor(s *state.State, id, profile string, forDevices bool) {
	kind, dc, namespace, name, count, index := "service", []string{"*"}, "default", "g", 1, uint64(5)
	one := uint64(1)
	j := &api.Job{ID: &id, Name: &id, Namespace: &namespace, Type: &kind, Datacenters: dc, JobModifyIndex: &index, TaskGroups: []*api.TaskGroup{{Name: &name, Count: &count, Tasks: []*api.Task{
		{Name: "t", Driver: "docker", Resources: &api.Resources{Devices: []*api.RequestedDevice{{Name: "nvidia/mig/" + profile, Count: &one}}}},
	}}}}
	c.index++
	s.Apply([]nomad.Change{{Job: nomad.NewJob(j, nomad.Hardware{})}, {Blocked: &nomad.Blocked{Index: c.index, EvalID: "e-" + id, Key: nomad.JobKey{Namespace: namespace, ID: id},
		Since: time.Now(), Missing: map[string]int{name: 1}, Why: map[string]string{}, ForDevices: map[string]bool{name: forDevices}}}}, c.index)
}

// recutLoop is a loop that a node listens to.
func recutLoop() (*Loop, *cutterNode) {
	w := &world{config: config.Default()}
	l, c := newLoop(w), newCutterNode()
	l.Recuts = &Recuts{Cutter: c}
	l.begin()
	c.show(l.State)
	return l, c
}

func rounds(t *testing.T, l *Loop, d time.Duration) {
	t.Helper()
	for range d / time.Second {
		time.Sleep(time.Second)
		l.State.Heard()
		l.recut(t.Context())
	}
}

// One order is written for what waits, and no other before the node has told what became of it
// or enough time has passed.
func TestAnOrderIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := recutLoop()
		rounds(t, l, time.Minute)
		c.waitsFor(l.State, "network", "3g.40gb", false)
		rounds(t, l, 10*time.Second)
		if len(c.got) != 0 {
			t.Fatalf("nothing waits for devices, and %+v is ordered", c.got)
		}
		c.waitsFor(l.State, "plain", "3g.40gb", true)
		rounds(t, l, 4*time.Second)
		if len(c.got) != 0 {
			t.Fatal("Nomad had no time to place it")
		}
		rounds(t, l, 30*time.Second)
		if len(c.got) != 1 || len(c.got[0].Remove) == 0 || c.got[0].For != "default/plain/g" {
			t.Fatalf("ordered: %+v", c.got)
		}
		c.show(l.State) // with the order, which is not carried out
		rounds(t, l, 10*time.Minute)
		if len(c.got) != 1 {
			t.Fatalf("an order is written over the one that is not answered: %+v", c.got)
		}
		var events []view.Event
		l.State.View(func(r *state.Reader) { _, events = r.Queue.Past() })
		if len(events) != 1 || events[0].Kind != "recut" || !strings.Contains(events[0].Text, "3g.40gb") {
			t.Errorf("it is told as %+v", events)
		}
		c.told.Refused, c.told.Why = c.got[0].ID, "it waited for a program"
		c.show(l.State)
		rounds(t, l, 2*time.Second)
		if len(c.got) != 2 || c.got[1].ID == c.got[0].ID {
			t.Errorf("after it was refused: %+v", c.got)
		}
	})
}

// An order that could not be written is written again after a rest, and people are told why the
// job waits.
func TestAnOrderThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := recutLoop()
		c.fails = true
		c.waitsFor(l.State, "plain", "3g.40gb", true)
		rounds(t, l, 30*time.Second)
		if len(c.got) != 1 {
			t.Fatalf("%d attempts within half a minute", len(c.got))
		}
		rounds(t, l, time.Minute)
		if len(c.got) != 2 {
			t.Errorf("%d attempts after a rest", len(c.got))
		}
		c.waitsFor(l.State, "never", "7g.80gb", true)
		rounds(t, l, 10*time.Second)
		l.State.View(func(r *state.Reader) {
			if why := r.Queue.Told(nomad.JobKey{Namespace: "default", ID: "never"}, "g").Uncut; !strings.Contains(why, "may be cut into nvidia/mig/7g.80gb") {
				t.Errorf("why nothing is cut: %q", why)
			}
		})
	})
}

// An order for a job that is gone is taken back, once; one for a job that waits, or an operator's,
// is not. Why nothing is cut is forgotten with the last GPU whose layout follows demand.
func TestAnOrderForNothingIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := recutLoop()
		c.waitsFor(l.State, "plain", "3g.40gb", true)
		rounds(t, l, 30*time.Second)
		c.show(l.State)
		rounds(t, l, time.Minute)
		if len(c.got) != 1 || c.back != 0 {
			t.Fatalf("ordered: %+v, taken back %d times", c.got, c.back)
		}
		c.index++
		l.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: "plain"}}}, c.index)
		rounds(t, l, 10*time.Second)
		if c.back != 1 {
			t.Fatalf("the order was taken back %d times", c.back)
		}
		c.meta[gpu.MIGOrderMeta+"GPU-1"] = gpu.MIGOrder{Version: 1, ID: "by hand", Remove: []string{"MIG-0"}, Make: []gpu.MIGPlace{{Profile: "3g.40gb"}}}.String()
		c.show(l.State)
		rounds(t, l, time.Minute)
		if c.back != 1 || len(c.got) != 1 {
			t.Errorf("an operator's order was taken back or written over: %d, %+v", c.back, c.got)
		}
		c.waitsFor(l.State, "never", "7g.80gb", true)
		rounds(t, l, 10*time.Second)
		why := func() (text string) {
			l.State.View(func(r *state.Reader) { text = r.Queue.Told(nomad.JobKey{Namespace: "default", ID: "never"}, "g").Uncut })
			return text
		}
		if why() == "" {
			t.Error("nobody says why nothing is cut")
		}
		c.told.Instances = nil
		c.show(l.State)
		rounds(t, l, 2*time.Second)
		if why() != "" {
			t.Errorf("no layout follows demand, and %q", why())
		}
	})
}
