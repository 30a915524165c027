// SPDX-License-Identifier: MPL-2.0

package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	nomaddevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sim/dcmi"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// The modes in which a machine is offered. HAMi-core stands for what limits by
// the environment, since it needs no daemon.
var modes = map[string]string{
	"whole":     ``,
	"slices":    "mode = \"slice\"\ngpu {\n vendor = \"nvidia\"\n sharing = \"hami\"\n}",
	"replicas":  `mode = "shared"`,
	"hashicorp": `mig_names = "hashicorp"`,
}

// plugin is the device plugin on a simulated machine.
type plugin struct {
	*device.Plugin
	dir string
}

func start(t *testing.T, topology, config string) plugin {
	t.Helper()
	dir := tmpfs.Dir(t)
	library := filepath.Join(dir, "libvgpu.so")
	if err := os.WriteFile(library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	npus, err := dcmi.Once()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := plugin{device.NewPlugin(ctx, hclog.NewNullLogger()), dir}
	t.Cleanup(func() { p.Close(); cancel() })
	text := fmt.Sprintf(`%s
		state_dir = "%[2]s/run"
		data_dir  = "%[2]s/data"
		hami {
			library  = "%[3]s"
			lock_dir = "%[2]s/locks"
		}
		health { interval = "100ms" }
		simulation {
			topology = "%[4]s"
			dir      = "%[2]s/sim"
			dcmi     = "%[5]s"
		}`, config, dir, library, topology, npus)
	if err := p.SetConfig(&base.Config{PluginConfig: encode(t, p, text)}); err != nil {
		t.Fatal(err)
	}
	return p
}

// encode turns HCL into what Nomad hands to SetConfig.
func encode(t *testing.T, p plugin, text string) []byte {
	t.Helper()
	schema, err := p.ConfigSchema()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := agentconfig.Encode(schema, text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// until waits for a fingerprint that is as wanted.
func (p plugin) until(t *testing.T, what string, wanted func([]*nomaddevice.DeviceGroup) bool) []*nomaddevice.DeviceGroup {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := p.Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for f := range stream {
		if wanted(f.Devices) {
			return f.Devices
		}
	}
	t.Fatalf("gave up waiting until %s", what)
	return nil
}

func healthy(groups []*nomaddevice.DeviceGroup) bool {
	return len(groups) > 0 && !slices.ContainsFunc(groups, func(g *nomaddevice.DeviceGroup) bool {
		return slices.ContainsFunc(g.Devices, func(d *nomaddevice.Device) bool { return !d.Healthy && !refused(g, d) })
	})
}

// refused reports whether a device is unhealthy since its vendor's cannot be what the
// configuration wants: Ascend's know no slices.
func refused(g *nomaddevice.DeviceGroup, d *nomaddevice.Device) bool {
	return g.Vendor == "huawei" && g.Type == gpu.TypeSlice && strings.HasPrefix(d.HealthDesc, "sharing-impossible: ")
}

// node is what Nomad's API says of a node with these groups, through the same
// types and the same text.
func node(t *testing.T, groups []*nomaddevice.DeviceGroup) *nomad.Node {
	t.Helper()
	inNomad := structs.NodeResources{}
	for _, g := range groups {
		d := &structs.NodeDeviceResource{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: g.Attributes}
		for _, one := range g.Devices {
			d.Instances = append(d.Instances, &structs.NodeDevice{ID: one.ID, Healthy: one.Healthy, HealthDescription: one.HealthDesc,
				Locality: &structs.NodeDeviceLocality{PciBusID: one.HwLocality.PciBusID}})
		}
		inNomad.Devices = append(inNomad.Devices, d)
	}
	text, err := json.Marshal(inNomad)
	if err != nil {
		t.Fatal(err)
	}
	var resources api.NodeResources
	if err := json.Unmarshal(text, &resources); err != nil {
		t.Fatal(err)
	}
	return nomad.NewNode(&api.Node{ID: "n", Status: "ready", SchedulingEligibility: "eligible", NodeResources: &resources}, nomad.Hardware{})
}

func topologies(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../topology/*.hcl")
	if err != nil || len(all) < 6 {
		t.Fatalf("topologies are %v, %v", all, err)
	}
	for i := range all {
		if all[i], err = filepath.Abs(all[i]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// What a machine has, the service knows of its node, however it is offered.
func TestServiceKnowsWhatTheMachineHas(t *testing.T) {
	for _, topology := range topologies(t) {
		for mode, config := range modes {
			t.Run(strings.TrimSuffix(filepath.Base(topology), ".hcl")+"/"+mode, func(t *testing.T) {
				t.Parallel()
				groups := start(t, topology, config).until(t, "all is healthy", healthy)
				machine, err := sim.ReadTopology(topology, "")
				if err != nil {
					t.Fatal(err)
				}
				n := node(t, groups)
				if err := n.Plan.Validate(); err != nil {
					t.Error(err)
				}
				instances := 0
				for _, g := range groups {
					instances += len(g.Devices)
				}
				for i, g := range machine.GPUs {
					if len(g.MIG) == 0 {
						instances -= checkGPU(t, n, machine, i, mode)
					} else {
						instances -= checkMIG(t, n, machine, i)
					}
				}
				for i := range machine.Cards {
					instances -= checkCard(t, n, machine, i, mode)
				}
				if instances != 0 {
					t.Errorf("%d instances of the fingerprint belong to no GPU", instances)
				}
			})
		}
	}
}

// at finds a device in both of the service's forms.
func at(n *nomad.Node, uuid string) (int, *view.GPU) {
	i := slices.IndexFunc(n.View.GPUs, func(g view.GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return -1, nil
	}
	return i, &n.View.GPUs[i]
}

func checkGPU(t *testing.T, n *nomad.Node, m *sim.Topology, i int, mode string) (instances int) {
	t.Helper()
	g, uuid := m.GPUs[i], m.UUID(i)
	place, v := at(n, uuid)
	if v == nil {
		t.Errorf("the service does not know GPU %d (%s)", i, g.Name)
		return 0
	}
	p := n.Plan.GPUs[place]
	if v.Model != g.Name || v.Type != gpu.ShortModel(g.Name) || v.Vendor != "nvidia" || p.Type != v.Type || !v.Healthy || v.Cordoned || p.Unhealthy {
		t.Errorf("GPU %d: %+v", i, v)
	}
	want := map[string]gpu.Mode{"slices": gpu.ModeSlice, "replicas": gpu.ModeShared}[mode]
	if want == "" {
		want = gpu.ModeWhole
	}
	if p.Mode != want || p.NUMA != g.NUMA || p.MemoryMiB <= 0 {
		t.Errorf("GPU %d: mode %s, NUMA node %d, %d MiB; want %s, %d", i, p.Mode, p.NUMA, p.MemoryMiB, want, g.NUMA)
	}
	kept := int64(10) // percent; a GB10 leaves the host more of their memory
	if v.Type == "GB10" {
		kept = 18
	}
	if want == gpu.ModeSlice && (p.SliceMiB != 1024 || p.Slices != int64(len(v.Instances)) || p.Slices < p.MemoryMiB*(100-kept)/100/1024-1) {
		t.Errorf("GPU %d: %d slices of %d MiB, %d instances", i, p.Slices, p.SliceMiB, len(v.Instances))
	}
	// NVLink joins all GPUs of a model in these machines, directly or by switches.
	var peers []string
	for other := range m.GPUs {
		if other != i && m.Joined(i, other) && len(m.GPUs[other].MIG) == 0 {
			peers = append(peers, m.UUID(other))
		}
	}
	var known []string
	for _, at := range p.Peers {
		known = append(known, n.Plan.GPUs[at].ID)
	}
	slices.Sort(peers)
	slices.Sort(known)
	if !slices.Equal(peers, known) {
		t.Errorf("GPU %d: NVLink leads to %v, the service knows %v", i, peers, known)
	}
	return len(v.Instances)
}

// checkCard checks a device of another vendor, or its partitions.
func checkCard(t *testing.T, n *nomad.Node, m *sim.Topology, i int, mode string) (instances int) {
	t.Helper()
	c, want := m.Cards[i], gpu.ModeWhole
	if m.CardParts(i) == 0 {
		want = map[string]gpu.Mode{"slices": gpu.ModeSlice, "replicas": gpu.ModeShared, "whole": gpu.ModeWhole, "hashicorp": gpu.ModeWhole}[mode]
	}
	// xe does not tell how much memory there is: it is unknown, and there are no slices.
	untold := c.Driver == "xe"
	if untold && mode == "slices" {
		return 0
	}
	found, well := 0, c.Vendor != "huawei" || want != gpu.ModeSlice
	for at, v := range n.View.GPUs {
		if v.UUID != m.CardUUID(i) && v.ParentUUID != m.CardUUID(i) {
			continue
		}
		found++
		instances += len(v.Instances)
		p := n.Plan.GPUs[at]
		if v.Vendor != c.Vendor || v.Type != gpu.ShortModel(c.Name) || p.NUMA != c.NUMA || (p.MemoryMiB <= 0) != untold || v.Healthy != well || p.Mode != want {
			t.Errorf("card %d: %+v, mode %s", i, v, p.Mode)
		}
		if (v.ParentUUID != "") != (v.Profile != "") {
			t.Errorf("card %d: %s of %q has the profile %q", i, v.UUID, v.ParentUUID, v.Profile)
		}
		if v.ParentUUID == "" && c.Linked != (len(p.Peers) > 0) {
			t.Errorf("card %d is linked to %v", i, p.Peers)
		}
	}
	if found != max(1, m.CardParts(i)) {
		t.Errorf("card %d is %d devices", i, found)
	}
	return instances
}

func checkMIG(t *testing.T, n *nomad.Node, m *sim.Topology, i int) (instances int) {
	t.Helper()
	var profiles []string
	for _, v := range n.View.GPUs {
		if v.ParentUUID != m.UUID(i) {
			continue
		}
		place, _ := at(n, v.UUID)
		if p := n.Plan.GPUs[place]; p.NUMA != m.GPUs[i].NUMA || p.MemoryMiB <= 0 || p.Profile != v.Profile {
			t.Errorf("instance %s: NUMA node %d, %d MiB, profile %q", v.UUID, p.NUMA, p.MemoryMiB, p.Profile)
		}
		profiles = append(profiles, v.Profile)
		instances += len(v.Instances)
	}
	if want := slices.Sorted(slices.Values(m.GPUs[i].MIG)); !slices.Equal(want, slices.Sorted(slices.Values(profiles))) {
		t.Errorf("GPU %d has instances %v, the service knows %v", i, want, profiles)
	}
	return instances
}

// Why a device takes no new work is told in words that the service understands.
func TestServiceKnowsCordonsFromFaults(t *testing.T) {
	topology, err := filepath.Abs("../topology/t4.hcl")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := sim.ReadTopology(topology, "")
	if err != nil {
		t.Fatal(err)
	}
	for mode, config := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := start(t, topology, config)
			p.until(t, "all is healthy", healthy)
			// A reason that reads like a fault, and a fault that reads like a cordon.
			if err := registry.OpenCordons(p.dir+"/data").Add(machine.UUID(0), "xid-79: gone (since 2026-01-02 03:04:05 UTC); replace it"); err != nil {
				t.Fatal(err)
			}
			if err := sim.Update(p.dir+"/sim", machine.UUID(1), func(c *sim.Condition) { c.Lost = true }); err != nil {
				t.Fatal(err)
			}
			var n *nomad.Node
			p.until(t, "both take no work", func(groups []*nomaddevice.DeviceGroup) bool {
				n = node(t, groups)
				_, a := at(n, machine.UUID(0))
				_, b := at(n, machine.UUID(1))
				return a != nil && b != nil && a.Health != "" && b.Health != ""
			})
			first, a := at(n, machine.UUID(0))
			second, b := at(n, machine.UUID(1))
			if !a.Cordoned || !a.Healthy || !n.Plan.GPUs[first].Cordoned || n.Plan.GPUs[first].Unhealthy {
				t.Errorf("cordoned: %+v", a)
			}
			if b.Cordoned || b.Healthy || n.Plan.GPUs[second].Cordoned || !n.Plan.GPUs[second].Unhealthy {
				t.Errorf("lost: %+v", b)
			}
		})
	}
}

// The limits that the device plugin gives to tasks of any driver are those that
// our driver gives to its own, for every amount.
func TestDriverAndPluginAgreeOnLimits(t *testing.T) {
	topology, err := filepath.Abs("../topology/dgx-h100.hcl")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, topology, modes["slices"])
	groups := p.until(t, "all is healthy", healthy)
	group := slices.IndexFunc(groups, func(g *nomaddevice.DeviceGroup) bool { return g.Type == gpu.TypeSlice })
	instances := groups[group].Devices
	states := map[string]gpu.GPUState{}
	for _, s := range published(t, p) {
		states[s.UUID] = s
	}
	for count := 1; count < len(instances); count++ {
		var ids []string
		for _, d := range instances[:count] {
			ids = append(ids, d.ID)
		}
		given, err := p.Reserve(ids)
		if err != nil {
			t.Fatal(err)
		}
		reservations, err := gpu.ReservationsFromEnv(given.Envs)
		if err != nil {
			t.Fatal(err)
		}
		devices, err := gpu.MergeDevices(reservations)
		if err != nil {
			t.Fatal(err)
		}
		share, err := spec.NewShare(devices, states, taskconfig.GPURequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{gpu.EnvHAMiMemory + "_0", gpu.EnvHAMiSM} {
			if share.Env[key] == "" {
				continue // all of the compute is no limit to our driver
			}
			if given.Envs[key] != share.Env[key] {
				t.Errorf("%d slices: the plugin says %s=%s, the driver %s", count, key, given.Envs[key], share.Env[key])
			}
		}
		for _, key := range slices.Sorted(maps.Keys(given.Envs)) {
			if !gpu.GuardedEnv(key) && key != "LD_PRELOAD" {
				t.Errorf("the plugin sets %s, which an image may change", key)
			}
		}
	}
}

func published(t *testing.T, p plugin) []gpu.GPUState {
	t.Helper()
	boot, err := statedir.BootID()
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(p.dir+"/run", boot)
	if err != nil {
		t.Fatal(err)
	}
	all, err := state.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	return all
}
