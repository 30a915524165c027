// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// demandNode has a GPU of two instances whose layout follows demand; edit changes what is told
// of it.
func demandNode(edit func(d *gpu.MIGDemand, n *api.Node)) *nomad.Node {
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	gib := int64(10)
	d := gpu.MIGDemand{GPU: "GPU-1", Index: new(int), AtOnce: 1, PerDay: 24, Profiles: []gpu.MIGProfile{
		{Name: "1g.10gb", Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 7, Allowed: true, MemoryMiB: 9856, Milli: 142},
		{Name: "3g.40gb", Size: 4, Starts: []int{0, 4}, Most: 2, Allowed: true, MemoryMiB: 40320, Milli: 428},
		{Name: "7g.80gb", Size: 8, Starts: []int{0}, Most: 1, MemoryMiB: 81000, Milli: 1000},
	}}
	group := &api.NodeDeviceResource{Vendor: "nvidia", Type: "mig", Name: "1g.10gb", Attributes: map[string]*api.Attribute{
		"model": word("NVIDIA H100 80GB HBM3"), "type": word("H100"), "profile": word("1g.10gb"), "memory": {IntVal: &gib, Unit: "GiB"},
	}}
	for start := range 2 {
		id := fmt.Sprintf("MIG-%d", start)
		d.Instances = append(d.Instances, gpu.MIGInstance{UUID: id, MIGPlace: gpu.MIGPlace{Profile: "1g.10gb", Start: start}})
		group.Instances = append(group.Instances, &api.NodeDevice{ID: id, Healthy: true})
	}
	n := &api.Node{ID: "id-m", Name: "m", NodePool: "default", Datacenter: "dc1", Status: "ready", SchedulingEligibility: "eligible", Meta: map[string]string{},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}, Devices: []*api.NodeDeviceResource{group}}}
	if edit != nil {
		edit(&d, n)
	}
	group.Attributes[gpu.AttrMIGDemand] = word(gpu.FormatMIGDemand([]gpu.MIGDemand{d}))
	return nomad.NewNode(n, nomad.Hardware{})
}

func migAsk(id, profile string) admit.Ask {
	a := servicetest.Ask(id, "1", 1)
	a.Tasks = []admit.TaskAsk{{Task: "t", Devices: []admit.DeviceAsk{{Name: "nvidia/mig/" + profile, Count: 1}}}}
	return a
}

// People see how such a GPU is cut, and when it was.
func TestLayoutsAreShown(t *testing.T) {
	n := demandNode(func(d *gpu.MIGDemand, _ *api.Node) {
		d.Cuts, d.Doing, d.Why = []int64{1_800_000_000}, "order", "it waited"
	})
	want := view.MIGLayout{GPU: "GPU-1", Name: "GPU 0", Instances: []string{"1g.10gb@0", "1g.10gb@1"}, Cuts: []time.Time{time.Unix(1_800_000_000, 0).UTC()}, Cutting: true, Refused: "it waited"}
	if diff := cmp.Diff([]view.MIGLayout{want}, n.View.MIGLayouts); diff != "" {
		t.Error(diff)
	}
}

// What demand could make is no reason to refuse a job; what the operator does not allow is.
func TestWhatDemandCouldMakeIsNotRefused(t *testing.T) {
	b := servicetest.New(t, "", demandNode(nil))
	d := b.Submit(t, migAsk("fits", "3g.40gb"))
	if d.Hold == nil || d.Hold.Kind != "room" {
		t.Errorf("it does not wait: %+v", d)
	}
	for _, profile := range []string{"7g.80gb", "2g.20gb"} {
		var refusal *admit.Refusal
		if _, err := b.Decide(t.Context(), []admit.Ask{migAsk("no", profile)}, false); !errors.As(err, &refusal) {
			t.Errorf("%s: %v", profile, err)
		}
	}
	pool := migAsk("pool", "3g.40gb")
	pool.NodePool, pool.Constraints = "default", []admit.Constraint{{LTarget: "${node.unique.name}", RTarget: "other", Operand: "="}}
	if _, err := b.Decide(t.Context(), []admit.Ask{pool}, false); err == nil {
		t.Error("a job for another node waits for this one")
	}
}

// A device block waits for any instance that Nomad would give it and demand can make, whole or in parts; one
// that no instance would ever serve is refused, with the reason.
func TestDeviceBlocksThatDemandServes(t *testing.T) {
	sliced := func(d *gpu.MIGDemand, _ *api.Node) {
		d.Profiles[1].Group, d.Profiles[1].Parts = "nvidia/mig-slice/3g.40gb/*", 9
	}
	over := func(left, right string) []admit.Constraint {
		return []admit.Constraint{{LTarget: left, Operand: ">=", RTarget: right}}
	}
	for name, c := range map[string]struct {
		edit    func(*gpu.MIGDemand, *api.Node)
		device  admit.DeviceAsk
		wants   string
		refused string
	}{
		"slices":                     {edit: sliced, device: admit.DeviceAsk{Name: "nvidia/mig-slice", Count: 8}, wants: "3g.40gb x1"},
		"slices by type":             {edit: sliced, device: admit.DeviceAsk{Name: "mig-slice", Count: 9}, wants: "3g.40gb x1"},
		"too many slices":            {edit: sliced, device: admit.DeviceAsk{Name: "nvidia/mig-slice", Count: 10}, refused: "no node can ever hold"},
		"slices of none":             {device: admit.DeviceAsk{Name: "nvidia/mig-slice", Count: 1}, refused: "no GPU whose layout follows demand may be cut into nvidia/mig-slice"},
		"whole, but they are sliced": {edit: sliced, device: admit.DeviceAsk{Name: "nvidia/mig/3g.40gb", Count: 1}, refused: "instances of that profile are nvidia/mig-slice/3g.40gb/*, of 9 parts each"},
		"large enough":               {device: admit.DeviceAsk{Name: "nvidia/mig", Count: 1, Constraints: over("${device.attr.memory}", "30 GiB")}, wants: "3g.40gb x1"},
		"of a profile":               {device: admit.DeviceAsk{Name: "mig", Count: 1, Constraints: []admit.Constraint{{LTarget: "${device.attr.profile}", Operand: "=", RTarget: "3g.40gb"}}}, wants: "3g.40gb x1"},
		"of another model":           {device: admit.DeviceAsk{Name: "nvidia/mig/3g.40gb", Count: 1, Constraints: []admit.Constraint{{LTarget: "${device.attr.type}", Operand: "=", RTarget: "A100"}}}, refused: "may be cut into nvidia/mig/3g.40gb as the job asks"},
		"what is seen when it is there": {edit: sliced, device: admit.DeviceAsk{Name: "nvidia/mig-slice", Count: 1, Constraints: []admit.Constraint{{LTarget: "${device.attr.sharing}", Operand: "=", RTarget: "mps"}}},
			wants: "3g.40gb x1"},
		"the next of a list": {edit: sliced, device: admit.DeviceAsk{Name: "nvidia/mig/3g.40gb", Count: 1, Alternative: true, Or: []admit.DeviceAsk{{Name: "nvidia/mig-slice", Count: 2}}}, wants: "3g.40gb x1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", demandNode(c.edit))
			a := migAsk("job", "")
			a.Tasks[0].Devices = []admit.DeviceAsk{c.device}
			d, err := b.Decide(t.Context(), []admit.Ask{a}, false)
			var refusal *admit.Refusal
			if errors.As(err, &refusal) {
				if text := refusal.Text + strings.Join(refusal.Details, "\n"); c.refused == "" || !strings.Contains(text, c.refused) {
					t.Fatalf("it is refused: %s", text)
				}
				return
			}
			if err != nil || c.refused != "" {
				t.Fatalf("%+v, %v", d, err)
			}
			b = servicetest.New(t, "", demandNode(c.edit))
			b.Submit(t, a)
			b.Register(a)
			b.Block(a, 1)
			if got := wanted(b); got != c.wants {
				t.Errorf("it wants %q, not %q", got, c.wants)
			}
		})
	}
}

// wanted is what waits for instances, in words.
func wanted(b *servicetest.Service) string {
	var list []string
	b.State.Do(func(tx *state.Tx) {
		for _, w := range decide.MIGDemand(tx).Wants {
			list = append(list, fmt.Sprintf("%s x%d", strings.Join(w.Profiles, " ")+w.Why, w.Instances()))
		}
	})
	return strings.Join(list, ", ")
}

// Groups that ask alike for parts share the instances that are made for them, and a group that finds no
// processor time where they would be made has none made.
func TestPartsOfInstancesAreShared(t *testing.T) {
	b := servicetest.New(t, "", demandNode(func(d *gpu.MIGDemand, _ *api.Node) {
		d.Profiles[1].Group, d.Profiles[1].Parts = "nvidia/mig-slice/3g.40gb/*", 9
	}))
	for n := range 3 {
		a := migAsk(fmt.Sprint("job-", n), "")
		a.Tasks[0].Devices = []admit.DeviceAsk{{Name: "nvidia/mig-slice", Count: 4}}
		b.Submit(t, a)
		b.Register(a)
		b.Block(a, 1)
	}
	if got := wanted(b); got != "3g.40gb x1, 3g.40gb x1" {
		t.Errorf("three of which two share an instance want %q", got)
	}
	large := migAsk("large", "3g.40gb")
	large.CPUMHz = 70_000
	if d, err := b.Decide(t.Context(), []admit.Ask{large}, false); err == nil {
		t.Errorf("what no node can run is %+v", d)
	}
}

// A request in words takes the smallest instance that is large enough and free, else one that
// demand can make.
func TestAnInstanceThatIsLargeEnough(t *testing.T) {
	for _, tc := range []struct {
		request string
		busy    int // of the two instances
		want    string
		waits   string
		wants   string
	}{
		{request: "8G,0.1", want: "nvidia/mig/1g.10gb"},
		{request: "0.1", want: "nvidia/mig/1g.10gb"},
		{request: "8G,0.2", want: "nvidia/mig/3g.40gb", waits: "GPU 0 of m is cut again for default/job/g", wants: "3g.40gb x1"},
		{request: "20G", want: "nvidia/mig/3g.40gb", waits: "GPU 0 of m is cut again for default/job/g", wants: "3g.40gb x1"},
		{request: "8G", busy: 2, want: "nvidia/mig/1g.10gb", waits: "become", wants: "1g.10gb x1"},
	} {
		t.Run(tc.request, func(t *testing.T) {
			b := servicetest.New(t, "", demandNode(nil))
			var ids []string
			for n := range tc.busy {
				ids = append(ids, fmt.Sprintf("MIG-%d", n))
			}
			if len(ids) > 0 {
				b.State.Apply([]nomad.Change{{Alloc: &nomad.Alloc{ID: "a", Namespace: "default", Job: "j", Group: "g", NodeID: "id-m", Status: "running", Created: time.Now(),
					Devices: []nomad.TaskDevices{{Task: "t", Group: "nvidia/mig/1g.10gb", IDs: ids}}}}}, 100)
			}
			a := servicetest.Ask("job", tc.request, 1)
			a.Sharing = admit.SharingMIG
			d := b.Submit(t, a)
			b.Register(a)
			if d.Hold != nil {
				b.Block(a, 1)
			}
			if got := d.Tasks[0].Devices[0]; got.Name != tc.want || got.Count != 1 || (d.Hold != nil) != (tc.waits != "") {
				t.Errorf("it has %+v, held: %+v", got, d.Hold)
			}
			if text := strings.Join(d.Explanation, "\n"); !strings.Contains(text, tc.waits) {
				t.Errorf("it is told %q", text)
			}
			b.State.Do(func(tx *state.Tx) {
				text := ""
				for _, w := range decide.MIGDemand(tx).Wants {
					text += fmt.Sprintf("%s x%d", strings.Join(w.Profiles, " "), w.Count)
				}
				if text != tc.wants {
					t.Errorf("it wants %q, not %q", text, tc.wants)
				}
			})
		})
	}
	b := servicetest.New(t, "", demandNode(nil))
	for request, want := range map[string]string{"100G": "large enough", "0.9": "large enough", "1": "is not valid beside gpu_sharing", "8G(MI300X)": ""} {
		a := servicetest.Ask("no", request, 1)
		a.Sharing = admit.SharingMIG
		if _, err := b.Decide(t.Context(), []admit.Ask{a}, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", request, err)
		}
	}
}

// An instance is free only if nothing holds it and Nomad shows it as healthy, and a GPU with an
// order that is not answered is left alone.
func TestWhatIsKnownOfInstances(t *testing.T) {
	order := func(id string, remove []string, start int) func(*gpu.MIGDemand, *api.Node) {
		return func(d *gpu.MIGDemand, n *api.Node) {
			d.Refused = "refused"
			n.Meta[gpu.MIGOrderMeta+d.GPU] = gpu.MIGOrder{Version: 1, ID: id, Remove: remove, Make: []gpu.MIGPlace{{Profile: "1g.10gb", Start: start}}}.String()
		}
	}
	for name, c := range map[string]struct {
		edit    func(d *gpu.MIGDemand, n *api.Node)
		running []string
		busy    []string
		cutting bool
		coming  int
		unready bool
	}{
		"free":        {},
		"held":        {running: []string{"MIG-1"}, busy: []string{"MIG-1"}},
		"not healthy": {edit: func(_ *gpu.MIGDemand, n *api.Node) { n.NodeResources.Devices[0].Instances[0].Healthy = false }, busy: []string{"MIG-0"}},
		"not shown": {edit: func(_ *gpu.MIGDemand, n *api.Node) {
			n.NodeResources.Devices[0].Instances = n.NodeResources.Devices[0].Instances[:1]
		}, busy: []string{"MIG-1"}},
		"being cut": {edit: func(d *gpu.MIGDemand, _ *api.Node) { d.Doing = "it" }, cutting: true},
		"ordered":   {edit: order("new", []string{"MIG-0"}, 5), cutting: true, coming: 1},
		"done, and cordoned still": {edit: func(d *gpu.MIGDemand, n *api.Node) {
			order("done", []string{"MIG-gone"}, 1)(d, n)
			n.NodeResources.Devices[0].Instances[1].Healthy = false
		}, busy: []string{"MIG-1"}, coming: 1},
		"done, and held":  {edit: order("done", []string{"MIG-gone"}, 1), running: []string{"MIG-1"}, busy: []string{"MIG-1"}},
		"ordered, done":   {edit: order("done", []string{"MIG-gone"}, 1)},
		"ordered, undone": {edit: order("refused", []string{"MIG-0"}, 5)},
		"long gone":       {edit: order("old", []string{"MIG-gone"}, 5)},
		"ineligible":      {edit: func(_ *gpu.MIGDemand, n *api.Node) { n.SchedulingEligibility = "ineligible" }, unready: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", demandNode(c.edit))
			if len(c.running) > 0 {
				b.State.Apply([]nomad.Change{{Alloc: &nomad.Alloc{ID: "a", Namespace: "default", Job: "j", Group: "g", NodeID: "id-m", Status: "running", Created: time.Now(),
					Devices: []nomad.TaskDevices{{Task: "t", Group: "nvidia/mig/1g.10gb", IDs: c.running}}}}}, 100)
			}
			b.State.Do(func(tx *state.Tx) {
				gpus := decide.MIGDemand(tx).GPUs
				if len(gpus) != 1 || gpus[0].Cutting != c.cutting || len(gpus[0].Coming) != c.coming || (gpus[0].Unready != "") != c.unready {
					t.Fatalf("%+v", gpus)
				}
				var busy []string
				for _, i := range gpus[0].Instances {
					if i.Busy {
						busy = append(busy, i.UUID)
					}
				}
				if !slices.Equal(busy, c.busy) {
					t.Errorf("%v are busy, want %v", busy, c.busy)
				}
			})
		})
	}
}

// BenchmarkDecideAnInstance is a decision about an instance that is large enough, on a cluster of which one
// node has such.
func BenchmarkDecideAnInstance(b *testing.B) {
	machines := []*nomad.Node{demandNode(nil)}
	for i := range 1000 {
		machines = append(machines, servicetest.Machine(fmt.Sprintf("m%05d", i), 8))
	}
	s := servicetest.New(b, "", machines...)
	a := servicetest.Ask("job", "8G,0.1", 1)
	a.Sharing = admit.SharingMIG
	for b.Loop() {
		if _, err := s.Decide(b.Context(), []admit.Ask{a}, false); err != nil {
			b.Fatal(err)
		}
	}
}
