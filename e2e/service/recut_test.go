// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// recutNode has one H100 that is cut into seven, whose layout follows demand.
func recutNode(rule string) cluster.NodeOptions {
	return cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "recut.hcl"), GPUs: "health {\n interval = \"1s\"\n}\ngpu {\n mode = \"mig\"\n layout = \"demand\"\n" + rule + "\n}"}
}

// instances asks for MIG instances by a device block.
func instances(profile string) []*api.RequestedDevice {
	one := uint64(1)
	return []*api.RequestedDevice{{Name: "nvidia/mig/" + profile, Count: &one}}
}

// layouts are the GPUs of the cluster as their device plugins tell, by node.
func layouts(ctx context.Context, t *testing.T, c *cluster.Cluster) map[string]gpu.MIGDemand {
	t.Helper()
	all := map[string]gpu.MIGDemand{}
	for _, n := range c.Nodes {
		node, _, err := c.API.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range node.NodeResources.Devices {
			if told := group.Attributes[gpu.AttrMIGDemand]; told != nil {
				list, err := gpu.ParseMIGDemand(told.String())
				if err != nil || len(list) != 1 {
					t.Fatal(list, err)
				}
				all[n.ID] = list[0]
			}
		}
	}
	return all
}

// heldBy are the device instances of the only alloc of a job, which runs.
func heldBy(ctx context.Context, t *testing.T, c *cluster.Cluster, id string) (alloc string, node string, devices []string) {
	t.Helper()
	a, _, err := c.API.Allocations().Info(runs(ctx, t, c.API, id, 1)[0].ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range a.AllocatedResources.Tasks {
		for _, d := range task.Devices {
			devices = append(devices, d.DeviceIDs...)
		}
	}
	return a.ID, a.NodeID, devices
}

// GPUs are cut again for what waits: a job of plain Nomad, and one through the service that says
// how much it needs. The tasks beside are not touched, and without the service everything stays
// as it is.
func TestGPUsAreCutForWhatWaits(t *testing.T) {
	t.Parallel()
	const rule = "mig {\n profile = \"1g.20gb\"\n mode = \"slice\"\n }"
	ctx, c := startNodes(t, recutNode(rule), recutNode(rule), recutNode(rule))
	began := time.Now()
	step := func(text string) { t.Logf("%s after %s", text, time.Since(began).Round(100*time.Millisecond)) }
	for n := range c.Nodes {
		if err := submit(ctx, c.API, job{id: fmt.Sprint("busy-", n), devices: instances("1g.10gb")}); err != nil {
			t.Fatal(err)
		}
	}
	type holding struct {
		alloc, node string
		devices     []string
	}
	hold := func(id string) (h holding) { h.alloc, h.node, h.devices = heldBy(ctx, t, c, id); return h }
	before := map[string]holding{}
	for n := range c.Nodes {
		before[fmt.Sprint("busy-", n)] = hold(fmt.Sprint("busy-", n))
	}

	r := serve(ctx, t, c, "")
	admits(ctx, t, r)
	step("the service admits")
	if err := submit(ctx, c.API, job{id: "plain", devices: instances("3g.40gb")}); err != nil {
		t.Fatal(err)
	}
	if code, out := nomad(ctx, t, r.URL, "job", "run", "-detach", filepath.Join(root, "examples", "service", "instance.nomad.hcl")); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	slices8 := uint64(8)
	if err := submit(ctx, c.API, job{id: "parts", devices: []*api.RequestedDevice{{Name: "nvidia/mig-slice", Count: &slices8}}}); err != nil {
		t.Fatal(err)
	}
	// Instances of that profile are divided, so that none will ever be there.
	if err := submit(ctx, c.API, job{id: "never", devices: instances("1g.20gb")}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"plain", "instance", "parts"} {
		before[id] = hold(id)
		step(id + " runs")
	}
	for id, was := range before {
		if now := hold(id); now.alloc != was.alloc || !slices.Equal(now.devices, was.devices) {
			t.Errorf("job %s: %+v became %+v", id, was, now)
		}
	}
	r.says(ctx, t, "recut", "3g.40gb", "2g.20gb", "1g.20gb")
	until(ctx, t, "say why a job waits", 20*time.Second, func() (bool, string) {
		var picture struct{ Pending []view.Pending }
		r.call(ctx, t, "GET", "/api/v1/gpu/cluster", "", &picture)
		for _, w := range picture.Pending {
			if strings.Contains(w.Note, "instances of that profile are nvidia/mig-slice/1g.20gb") {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", picture.Pending)
	})
	told := layouts(ctx, t, c)
	cuts := 0
	for _, d := range told {
		cuts += len(d.Cuts)
	}
	if cuts < 1 || cuts > 3 {
		t.Errorf("three jobs had GPUs cut %d times: %+v", cuts, told)
	}
	for id, h := range before {
		d := told[h.node]
		uuid, _, _ := strings.Cut(strings.TrimPrefix(h.devices[0], "nvidia/mig/"), "::")
		at := slices.IndexFunc(d.Instances, func(i gpu.MIGInstance) bool { return i.UUID == uuid })
		if want := map[string]string{"plain": "3g.40gb", "instance": "2g.20gb", "parts": "1g.20gb"}[id]; at < 0 || want != "" && d.Instances[at].Profile != want {
			t.Errorf("job %s has %v, and its GPU %+v", id, h.devices, d.Instances)
		}
	}

	r.kill(syscall.SIGKILL)
	if err := submit(ctx, c.API, job{id: "after", devices: instances("1g.10gb")}); err != nil {
		t.Fatal(err)
	}
	before["after"] = hold("after")
	step("a job runs without the service")
	for id, was := range before {
		if now := hold(id); now.alloc != was.alloc {
			t.Errorf("without the service, job %s: %+v became %+v", id, was, now)
		}
	}
	now := layouts(ctx, t, c)
	for id, d := range told {
		if !slices.Equal(now[id].Instances, d.Instances) {
			t.Errorf("without the service, %+v became %+v", d.Instances, now[id].Instances)
		}
	}
}

// says waits until the service tells of events whose texts have some words.
func (r *replica) says(ctx context.Context, t *testing.T, kind string, words ...string) {
	t.Helper()
	var picture struct{ Events []struct{ Kind, Text string } }
	until(ctx, t, "tell of it", 20*time.Second, func() (bool, string) {
		r.call(ctx, t, "GET", "/api/v1/gpu/cluster", "", &picture)
		for _, word := range words {
			found := false
			for _, e := range picture.Events {
				found = found || e.Kind == kind && strings.Contains(e.Text, word)
			}
			if !found {
				return false, fmt.Sprintf("%+v", picture.Events)
			}
		}
		return true, ""
	})
}

// An order to cut a GPU is carried out once, and what is in use stays, when the service, Nomad's client or the
// device plugin is killed at any of its steps. NOMAD_GPU_FULL kills each of them at each step.
func TestAnOrderSurvivesKills(t *testing.T) {
	t.Parallel()
	matrix := []struct{ victim, at string }{{"service", "ordered"}, {"client", "cut"}}
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		matrix = []struct{ victim, at string }{
			{"service", "ordered"}, {"service", "cordon"}, {"service", "cut"}, {"client", "ordered"},
			{"client", "cordon"}, {"client", "cut"}, {"plugin", "cordon"}, {"plugin", "cut"},
		}
	}
	options := recutNode("demand {\n at_once = 2\n }")
	text, err := os.ReadFile(options.Topology)
	if err != nil {
		t.Fatal(err)
	}
	options.Topology = filepath.Join(t.TempDir(), "recuts.hcl")
	write(t, options.Topology, strings.Replace(string(text), "gpu {", fmt.Sprintf("gpu {\n  count = %d", len(matrix)+1), 1))
	ctx, c := startNodes(t, options)
	n := c.Nodes[0]
	if err := submit(ctx, c.API, job{id: "busy", devices: instances("1g.10gb")}); err != nil {
		t.Fatal(err)
	}
	busy, _, devices := heldBy(ctx, t, c, "busy")
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)

	// step is how far an order is, as the node's metadata and the plugin's own file tell.
	seen := map[string]bool{}
	step := func() (order, at string) {
		var file struct {
			GPUs map[string]struct {
				Phase string        `json:"phase"`
				Order *gpu.MIGOrder `json:"order"`
			} `json:"gpus"`
		}
		if text, err := os.ReadFile(filepath.Join(n.Dir("gpu"), "mig-layouts.json")); err == nil {
			if err := json.Unmarshal(text, &file); err != nil {
				t.Fatal(err)
			}
		}
		for _, g := range file.GPUs {
			if g.Order != nil && !seen[g.Order.ID] {
				return g.Order.ID, g.Phase
			}
		}
		node, _, err := c.API.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return "", err.Error()
		}
		for key, text := range node.Meta {
			if o, err := gpu.ParseMIGOrder(text); strings.HasPrefix(key, gpu.MIGOrderMeta) && err == nil && !seen[o.ID] {
				return o.ID, "ordered"
			}
		}
		return "", ""
	}
	for k, kill := range matrix {
		id := fmt.Sprint("want-", k)
		if err := submit(ctx, c.API, job{id: id, devices: instances("7g.80gb")}); err != nil {
			t.Fatal(err)
		}
		order := ""
		until(ctx, t, "see an order "+kill.at, time.Minute, func() (bool, string) {
			found, at := step()
			order = found
			return at == kill.at, fmt.Sprintf("order %q is %q", found, at)
		})
		seen[order] = true
		var err error
		switch kill.victim {
		case "service":
			r.kill(syscall.SIGKILL)
			r = serve(ctx, t, c, "")
		case "client":
			if err = n.KillClient(); err == nil {
				err = n.StartClient(ctx)
			}
		case "plugin":
			err = n.KillDevicePlugin()
		}
		if err != nil {
			t.Fatal(err)
		}
		heldBy(ctx, t, c, id)
		doubleBooked(ctx, t, c.API)
		if alloc, _, has := heldBy(ctx, t, c, "busy"); alloc != busy || !slices.Equal(has, devices) {
			t.Errorf("%s killed when it was %s: alloc %s with %v became %s with %v", kill.victim, kill.at, busy, devices, alloc, has)
		}
		t.Logf("%s killed when an order was %s", kill.victim, kill.at)
	}
	node, _, err := c.API.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	cuts, kept, all := 0, false, map[string]gpu.MIGDemand{}
	for _, group := range node.NodeResources.Devices {
		told, err := gpu.ParseMIGDemand(group.Attributes[gpu.AttrMIGDemand].String())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range told {
			all[d.GPU] = d
		}
	}
	for _, d := range all {
		cuts += len(d.Cuts)
		var places []gpu.MIGPlace
		for _, i := range d.Instances {
			places, kept = append(places, i.MIGPlace), kept || strings.HasSuffix(devices[0], i.UUID)
		}
		if err := gpu.CheckMIGPlaces(d.Profiles, places); err != nil {
			t.Errorf("GPU %s: %v", d.GPU, err)
		}
	}
	if cuts != len(matrix) || !kept {
		t.Errorf("%d orders cut GPUs %d times, and what is in use was kept: %t", len(matrix), cuts, kept)
	}
}
