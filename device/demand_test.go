// SPDX-License-Identifier: MPL-2.0

package device

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// clientOf stands in for what Nomad's client has on its disk.
type clientOf struct {
	mu              sync.Mutex
	devices, orders map[string]string
}

func (c *clientOf) read() (*plan.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := &plan.Client{Devices: map[string]string{}, Orders: map[string]string{}}
	for k, v := range c.devices {
		now.Devices[k] = v
	}
	for k, v := range c.orders {
		now.Orders[k] = v
	}
	return now, nil
}

func (c *clientOf) set(orders, devices map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orders, c.devices = orders, devices
}

// demanding starts a plugin with one GPU whose layout follows demand, cut into seven.
func demanding(t *testing.T, extra string) (*rig, *clientOf) {
	t.Helper()
	r, client := newRig(t), &clientOf{}
	r.client = client.read
	topology := filepath.Join(r.dir, "machine.hcl")
	writeFile(t, topology, `machine "m" {}
gpu {
	model = "H100"
	mig   = ["1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"]
}`)
	r.start(topology, `gpu {
	mode   = "mig"
	layout = "demand"
	`+extra+`
}`)
	return r, client
}

// demand reads the attribute of the only GPU.
func (r *rig) demand(groups []*device.DeviceGroup) gpu.MIGDemand {
	r.t.Helper()
	if len(groups) == 0 || groups[0].Attributes[gpu.AttrMIGDemand] == nil {
		return gpu.MIGDemand{}
	}
	all, err := gpu.ParseMIGDemand(plan.AttributeText(groups[0].Attributes[gpu.AttrMIGDemand]))
	if err != nil || len(all) != 1 {
		r.t.Fatal(all, err)
	}
	return all[0]
}

// at is the instance at a place.
func at(d gpu.MIGDemand, start int) string {
	n := slices.IndexFunc(d.Instances, func(i gpu.MIGInstance) bool { return i.Start == start })
	return d.Instances[n].UUID
}

func TestOrderCutsWhatIsFreeAndNothingElse(t *testing.T) {
	r, client := demanding(t, "")
	groups := r.until("it tells of its layout", func(g []*device.DeviceGroup) bool { return len(r.demand(g).Instances) == 7 })
	d := r.demand(groups)
	busy := at(d, 0)
	r.happen(d.GPU, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 1, Instance: busy}} })
	order := gpu.MIGOrder{Version: 1, ID: "one", For: "job default/train", Make: []gpu.MIGPlace{{Profile: "3g.40gb", Start: 4}, {Profile: "2g.20gb", Start: 2}}}
	for start := 2; start < 7; start++ {
		order.Remove = append(order.Remove, at(d, start))
	}
	client.set(map[string]string{d.GPU: order.String()}, map[string]string{busy: "alloc"})
	groups = r.until("it is cut", func(g []*device.DeviceGroup) bool { _, n := find(g, "mig/3g.40gb"); return n == 1 && allHealthy(g) })
	d = r.demand(groups)
	if len(d.Instances) != 4 || at(d, 0) != busy || len(d.Cuts) != 1 || d.Doing != "" || d.Refused != "" {
		t.Errorf("it is now %+v", d)
	}
	// The order is still there: it is done only once.
	before := d
	r.Close()
	r.start(filepath.Join(r.dir, "machine.hcl"), "gpu {\n mode = \"mig\"\n layout = \"demand\"\n}")
	if d = r.demand(r.until("it is back", allHealthy)); !slices.Equal(d.Instances, before.Instances) {
		t.Errorf("after a restart it is %+v", d)
	}
	// What an order cannot have is refused, and the GPU is as it was.
	for _, bad := range []struct {
		name  string
		order gpu.MIGOrder
		why   string
	}{
		{"in use", gpu.MIGOrder{Remove: []string{busy}, Make: []gpu.MIGPlace{{Profile: "1g.10gb+me", Start: 0}}}, `profile "1g.10gb+me" is not one that may be made`},
		{"held", gpu.MIGOrder{Remove: []string{busy, at(d, 1)}, Make: []gpu.MIGPlace{{Profile: "2g.20gb", Start: 0}}}, "it waited for allocation alloc"},
		{"overlap", gpu.MIGOrder{Make: []gpu.MIGPlace{{Profile: "1g.10gb", Start: 4}}}, "overlap"},
		{"gone", gpu.MIGOrder{Remove: []string{"MIG-gone"}, Make: []gpu.MIGPlace{{Profile: "1g.10gb", Start: 4}}}, "is not there"},
	} {
		bad.order.Version, bad.order.ID = 1, bad.name
		client.set(map[string]string{d.GPU: bad.order.String()}, map[string]string{busy: "alloc"})
		r.until(bad.name+" is refused", func(g []*device.DeviceGroup) bool {
			now := r.demand(g)
			return now.Refused == bad.name && strings.Contains(now.Why, strings.TrimPrefix(bad.why, "it waited for ")) && slices.Equal(now.Instances, before.Instances)
		})
	}
}

// Bounds of the operator hold whoever orders.
func TestOrdersKeepToTheBounds(t *testing.T) {
	r, client := demanding(t, `profiles = ["1g.10gb", "2g.20gb"]
	demand {
		least   = ["1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"]
		per_day = 1
	}`)
	groups := r.until("it tells of its layout", func(g []*device.DeviceGroup) bool { return len(r.demand(g).Instances) == 7 })
	d := r.demand(groups)
	order := func(id string, starts ...int) gpu.MIGOrder {
		o := gpu.MIGOrder{Version: 1, ID: id}
		for _, start := range starts {
			o.Remove = append(o.Remove, at(d, start), at(d, start+1))
			o.Make = append(o.Make, gpu.MIGPlace{Profile: "2g.20gb", Start: start})
		}
		return o
	}
	refused := func(id, why string) {
		t.Helper()
		r.until(id+" is refused", func(g []*device.DeviceGroup) bool {
			now := r.demand(g)
			return now.Refused == id && strings.Contains(now.Why, why)
		})
	}
	client.set(map[string]string{d.GPU: order("least", 0, 2).String()}, nil)
	refused("least", "too few instances of 1g.10gb would remain")
	client.set(map[string]string{d.GPU: order("fits", 0).String()}, nil)
	r.until("it is cut", func(g []*device.DeviceGroup) bool { _, n := find(g, "mig/2g.20gb"); return n == 1 && allHealthy(g) })
	d = r.demand(r.groups())
	client.set(map[string]string{d.GPU: gpu.MIGOrder{Version: 1, ID: "day", Remove: []string{at(d, 2), at(d, 3)}, Make: []gpu.MIGPlace{{Profile: "1g.10gb", Start: 2}, {Profile: "2g.20gb", Start: 2}}}.String()}, nil)
	refused("day", "")
}

// What an order makes is cut into slices or shared as the rules of instances say, and what is
// busy there stays.
func TestInstancesThatDemandMadeAreDivided(t *testing.T) {
	r, client := demanding(t, "mig {\n profile = \"3g.*\"\n mode = \"slice\"\n slice_memory = \"4GiB\"\n }\n mig {\n profile = \"2g.*\"\n mode = \"shared\"\n replicas = 2\n }\n")
	d := r.demand(r.until("it tells of its layout", func(g []*device.DeviceGroup) bool { return len(r.demand(g).Instances) == 7 }))
	order := gpu.MIGOrder{Version: 1, ID: "one", Make: []gpu.MIGPlace{{Profile: "3g.40gb", Start: 4}, {Profile: "2g.20gb", Start: 2}}}
	for start := 2; start < 7; start++ {
		order.Remove = append(order.Remove, at(d, start))
	}
	client.set(map[string]string{d.GPU: order.String()}, nil)
	sliced := func(g []*device.DeviceGroup) (slices, turns int) {
		for _, group := range g {
			switch group.Type {
			case gpu.TypeMIGSlice:
				slices += len(group.Devices)
				if got := plan.AttributeText(group.Attributes[gpu.AttrSharing]); got != string(gpu.SharingMPS) {
					t.Errorf("slices are kept apart by %s", got)
				}
			case gpu.TypeShared:
				turns += len(group.Devices)
			}
		}
		return slices, turns
	}
	groups := r.until("its instances are divided", func(g []*device.DeviceGroup) bool {
		slices, turns := sliced(g)
		return slices > 1 && turns == 2 && allHealthy(g)
	})
	// What an instance would be offered as was told before it was made.
	d = r.demand(groups)
	for name, want := range map[string]string{"1g.10gb": "", "2g.20gb": "nvidia/shared/2g.20gb/*", "3g.40gb": "nvidia/mig-slice/3g.40gb/*"} {
		count, _ := sliced(groups)
		p, _ := gpu.MIGProfileOf(d.Profiles, name)
		if parts := map[string]int64{"2g.20gb": 2, "3g.40gb": int64(count)}[name]; p.Group != want || p.Parts != parts {
			t.Errorf("%s is to be %q in %d parts, not %q in %d", name, p.Group, p.Parts, want, parts)
		}
	}
	// A task on one slice keeps the whole instance.
	made := at(d, 4)
	client.set(map[string]string{d.GPU: gpu.MIGOrder{Version: 1, ID: "two", Remove: []string{made}, Make: []gpu.MIGPlace{{Profile: "1g.10gb", Start: 4}}}.String()}, map[string]string{made + "::0": "alloc"})
	r.until("its instance is in use", func(g []*device.DeviceGroup) bool {
		now := r.demand(g)
		return now.Refused == "two" && at(now, 4) == made
	})
}
