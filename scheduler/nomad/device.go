package nomad

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Hardware is what the operator says about devices that do not tell.
type Hardware struct {
	// ResourceNames are the device names of whole devices per vendor word.
	ResourceNames map[string]string
	// ModelMemoryMiB is a model's memory.
	ModelMemoryMiB map[string]int64
}

// device is one GPU in both its forms: for planning and for people.
type device struct {
	plan place.GPU
	view view.GPU
}

// devices finds the GPUs among a node's device groups, in the order of group
// and ID. Other devices are left out.
func (h Hardware) devices(groups []*api.NodeDeviceResource) []device {
	var found []device
	for _, g := range groups {
		mode, ok := h.modeOf(g)
		if !ok {
			continue
		}
		byUUID := map[string][]view.Instance{}
		for _, in := range g.Instances {
			id, _, err := gpu.ParseSliceID(in.ID)
			if err != nil {
				continue
			}
			byUUID[id.UUID] = append(byUUID[id.UUID], view.Instance{ID: in.ID, Healthy: in.Healthy})
		}
		for uuid, instances := range byUUID {
			found = append(found, h.device(g, mode, uuid, instances))
		}
	}
	slices.SortFunc(found, func(a, b device) int {
		return cmp.Or(strings.Compare(a.view.Group, b.view.Group), strings.Compare(a.view.UUID, b.view.UUID))
	})
	linkPeers(found, groups)
	return found
}

// modeOf reads the mode off the device type. A MIG instance has the mode in
// which it is offered itself.
func (h Hardware) modeOf(g *api.NodeDeviceResource) (gpu.Mode, bool) {
	switch g.Type {
	case "slice", "mig-slice":
		return gpu.ModeSlice, true
	case "shared", "mig-shared":
		return gpu.ModeShared, true
	case "gpu", "npu", "mig":
		return gpu.ModeWhole, true
	}
	for _, name := range h.ResourceNames {
		if name == g.Type || name == g.Vendor+"/"+g.Type {
			return gpu.ModeWhole, true
		}
	}
	return "", false
}

func (h Hardware) device(g *api.NodeDeviceResource, mode gpu.Mode, uuid string, instances []view.Instance) device {
	slices.SortFunc(instances, func(a, b view.Instance) int {
		x, _, _ := gpu.ParseSliceID(a.ID)
		y, _, _ := gpu.ParseSliceID(b.ID)
		return x.N - y.N
	})
	a := attributes(g.Attributes)
	d := device{view: view.GPU{
		UUID: uuid, ParentUUID: a.text("unique.parent"), Vendor: g.Vendor, Model: a.text("model"), Type: a.text("type"),
		Group: g.ID(), Mode: string(mode), Sharing: a.text("sharing"), Grade: a.text("grade"),
		MemoryMiB: a.mib("memory"), SliceMemoryMiB: a.mib("slice_memory"), Instances: instances, Healthy: true,
		Measured: view.Measured{Milli: view.Unmeasured, MemoryMiB: view.Unmeasured, TemperatureC: view.Unmeasured, PowerW: view.Unmeasured},
	}}
	if d.view.Model == "" {
		d.view.Model, _, _ = strings.Cut(g.Name, "/")
	}
	if d.view.Type == "" {
		d.view.Type = shortType(d.view.Model)
	}
	if g.Type == "mig" || strings.HasPrefix(g.Type, "mig-") {
		if d.view.Profile = a.text("profile"); d.view.Profile == "" {
			d.view.Profile, _, _ = strings.Cut(g.Name, "/")
		}
	}
	if d.view.MemoryMiB == 0 {
		d.view.MemoryMiB = h.ModelMemoryMiB[d.view.Type]
	}
	d.health(g)
	d.plan = place.GPU{
		ID: uuid, Vendor: g.Vendor, Model: d.view.Model, Type: d.view.Type, Mode: mode, Sharing: gpu.Sharing(d.view.Sharing),
		Profile: d.view.Profile, MemoryMiB: d.view.MemoryMiB, NUMA: int(a.number("numa_node", -1)),
		Unhealthy: !d.view.Healthy, Cordoned: d.view.Cordoned,
		MeasuredMilli: place.Unmeasured, MeasuredMemoryMiB: place.Unmeasured,
	}
	d.amounts()
	return d
}

// health sums up the instances. Devices in use stay healthy for Nomad while a
// GPU is cordoned, so a mixture is a cordon.
func (d *device) health(g *api.NodeDeviceResource) {
	bad := 0
	for i, in := range d.view.Instances {
		if in.Healthy {
			continue
		}
		bad++
		if d.view.Health == "" {
			at := slices.IndexFunc(g.Instances, func(n *api.NodeDevice) bool { return n.ID == d.view.Instances[i].ID })
			d.view.Health = g.Instances[at].HealthDescription
		}
	}
	cordoned := strings.Contains(strings.ToLower(d.view.Health), "cordon")
	d.view.Cordoned = bad > 0 && (cordoned || bad < len(d.view.Instances))
	d.view.Healthy = bad == 0 || d.view.Cordoned
}

// amounts sets how much of the device there is to give away.
func (d *device) amounts() {
	n := int64(len(d.view.Instances))
	switch d.plan.Mode {
	case gpu.ModeSlice:
		d.plan.Slices = n
		d.plan.SliceMiB = d.view.SliceMemoryMiB
		if d.plan.SliceMiB == 0 && n > 0 {
			d.plan.SliceMiB = max(1, d.view.MemoryMiB/n)
		}
		d.view.SliceMemoryMiB = d.plan.SliceMiB
	case gpu.ModeShared:
		d.plan.Replicas = n
	}
}

// linkPeers translates the NVLink peers, which are UUIDs or indexes in an
// attribute, to positions.
func linkPeers(found []device, groups []*api.NodeDeviceResource) {
	for _, g := range groups {
		a := attributes(g.Attributes)
		peers := a.text("nvlink_peers")
		if peers == "" {
			continue
		}
		for i := range found {
			if found[i].view.Group != g.ID() {
				continue
			}
			for _, name := range strings.Split(peers, ",") {
				at := slices.IndexFunc(found, func(d device) bool { return d.view.UUID == strings.TrimSpace(name) })
				if at >= 0 && at != i {
					found[i].plan.Peers = append(found[i].plan.Peers, at)
				}
			}
			slices.Sort(found[i].plan.Peers)
		}
	}
}

// shortType makes "A100" of "NVIDIA A100-PCIE-40GB": the first word that holds
// a digit, up to a dash.
func shortType(model string) string {
	for _, word := range strings.Fields(strings.ReplaceAll(model, "_", " ")) {
		for _, part := range strings.Split(word, "-") {
			if strings.ContainsAny(part, "0123456789") {
				return part
			}
		}
	}
	return model
}

// attributes reads a device group's typed attributes.
type attributes map[string]*api.Attribute

func (a attributes) text(key string) string {
	v := a[key]
	if v == nil {
		return ""
	}
	return v.String()
}

func (a attributes) number(key string, otherwise int64) int64 {
	v := a[key]
	if v == nil || v.IntVal == nil {
		return otherwise
	}
	return *v.IntVal
}

// mib reads an amount of memory, whose unit is MiB unless it says GiB.
func (a attributes) mib(key string) int64 {
	v := a[key]
	switch {
	case v == nil || v.IntVal == nil:
		return 0
	case v.Unit == "GiB":
		return *v.IntVal * 1024
	default:
		return *v.IntVal
	}
}
