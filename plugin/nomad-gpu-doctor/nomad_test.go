// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
)

const nodeID = "9cfa3b0e-6a6a-4d1a-8f0f-2f0c5f1f7a11"

// healthyNode is a node that has all that it should; change makes it another.
func healthyNode(change func(*api.Node)) *api.Node {
	grade := &api.Attribute{StringVal: new(string)}
	n := &api.Node{ID: nodeID, Name: "node-1", Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
		Drivers: map[string]*api.DriverInfo{"containerd": {Detected: true, Healthy: true, HealthDescription: "Healthy"}},
		NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{{Vendor: "nvidia", Type: "slice", Name: "H100/0",
			Instances: []*api.NodeDevice{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}, Attributes: map[string]*api.Attribute{"grade": grade}}}},
	}
	if change != nil {
		change(n)
	}
	return n
}

// playNomad answers as an agent does, with a node, and points this process's
// environment there.
func playNomad(t *testing.T, self string, status int, node *api.Node) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/agent/self", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(self))
	})
	mux.HandleFunc("/v1/node/"+nodeID, func(w http.ResponseWriter, _ *http.Request) {
		if node == nil {
			http.Error(w, "node not found", http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(node)
	})
	mux.HandleFunc("/v1/node/"+nodeID+"/allocations", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(allocations)) })
	mux.HandleFunc("/v1/vars", func(w http.ResponseWriter, r *http.Request) {
		must.Eq(t, "nomad-gpu/", r.URL.Query().Get("prefix"))
		_, _ = w.Write([]byte(`[{"Path": "nomad-gpu/history"}]`))
	})
	mux.HandleFunc("/v1/var/nomad-gpu/history", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"Path": "nomad-gpu/history", "Items": {"history": "job train was placed"}}`))
	})
	mux.HandleFunc("/v1/queue/jobs", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("node_pool") != "fifo" {
			http.NotFound(w, r) // as Nomad before 2.1
			return
		}
		_, _ = w.Write([]byte(`{"Type": "fifo", "Workloads": [{}, {}]}`))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Setenv("NOMAD_ADDR", server.URL)
	t.Setenv("NOMAD_TOKEN", "")
}

const (
	clientSelf = `{"config": {"Version": {"Version": "1.11.3", "VersionPrerelease": ""}}, "member": {"Tags": null}, "stats": {"client": {"node_id": "` + nodeID + `"}}}`
	newerSelf  = `{"config": {"Version": {"Version": "99.1.0", "VersionPrerelease": "dev"}}, "member": {"Tags": null}, "stats": {"client": {"node_id": "` + nodeID + `"}}}`
	serverSelf = `{"member": {"Tags": {"build": "1.11.3"}}, "stats": {}}`
)

// allocations are one with a GPU and one without, of jobs that have secrets.
const allocations = `[
	{"ID": "a1", "JobID": "train", "ClientStatus": "running",
		"Job": {"Meta": {"owner": "hunter2-of-meta"}, "TaskGroups": [{"Tasks": [{"Env": {"HF_TOKEN": "hunter2-of-env"}, "Config": {"args": ["hunter2-of-args"]},
			"Templates": [{"EmbeddedTmpl": "hunter2-of-template"}]}]}]},
		"AllocatedResources": {"Tasks": {"main": {"Devices": [{"Vendor": "nvidia", "Type": "slice", "Name": "H100/0", "DeviceIDs": ["GPU-1::s0"]}]}}}},
	{"ID": "a2", "JobID": "web", "AllocatedResources": {"Tasks": {"main": {}}}}]`

func TestWhatNomadSees(t *testing.T) {
	for name, tc := range map[string]struct {
		self   string
		status int
		node   *api.Node
		check  string
		want   doctor.Status
		text   string
	}{
		"agent":             {clientSelf, 200, healthyNode(nil), "agent", doctor.OK, "1.11.3"},
		"a newer agent":     {newerSelf, 200, healthyNode(nil), "agent", doctor.Warning, `"99.1.0-dev": tests ran on Nomad 1.11.3 to `},
		"ACLs":              {"Permission denied", 403, nil, "agent", doctor.Failed, "NOMAD_TOKEN"},
		"another server":    {"what?", 500, nil, "agent", doctor.Failed, "does not answer"},
		"no client":         {serverSelf, 200, nil, "agent", doctor.Failed, "is not a client"},
		"unknown node":      {clientSelf, 200, nil, "node", doctor.Failed, "do not know node"},
		"ready":             {clientSelf, 200, healthyNode(nil), "node", doctor.OK, "node-1 is ready"},
		"down":              {clientSelf, 200, healthyNode(func(n *api.Node) { n.Status = "down" }), "node", doctor.Failed, "down"},
		"ineligible":        {clientSelf, 200, healthyNode(func(n *api.Node) { n.SchedulingEligibility = "ineligible" }), "node", doctor.Warning, "eligibility -enable"},
		"driver":            {clientSelf, 200, healthyNode(nil), "driver containerd", doctor.OK, "Healthy"},
		"no driver":         {clientSelf, 200, healthyNode(func(n *api.Node) { n.Drivers = nil }), "driver containerd", doctor.Failed, "no such driver"},
		"undetected driver": {clientSelf, 200, healthyNode(func(n *api.Node) { n.Drivers["containerd"].Detected = false }), "driver containerd", doctor.Failed, "no such driver"},
		"unhealthy driver": {clientSelf, 200, healthyNode(func(n *api.Node) {
			*n.Drivers["containerd"] = api.DriverInfo{Detected: true, HealthDescription: "containerd is away"}
		}), "driver containerd", doctor.Failed, "containerd is away"},
		"devices":         {clientSelf, 200, healthyNode(nil), "nvidia/slice/H100/0", doctor.OK, "2 instances"},
		"half healthy":    {clientSelf, 200, healthyNode(func(n *api.Node) { n.NodeResources.Devices[0].Instances[1].Healthy = false }), "nvidia/slice/H100/0", doctor.Warning, "1 of 2"},
		"no devices":      {clientSelf, 200, healthyNode(func(n *api.Node) { n.NodeResources = nil }), "devices", doctor.Failed, "sees no GPU"},
		"others' only":    {clientSelf, 200, healthyNode(func(n *api.Node) { n.NodeResources.Devices[0].Attributes = nil }), "devices", doctor.Failed, "sees no GPU"},
		"others' GPUs":    {clientSelf, 200, healthyNode(func(n *api.Node) { n.NodeResources.Devices[0].Attributes = nil }), "devices", doctor.Warning, "nvidia/slice/H100/0"},
		"a batch queue":   {clientSelf, 200, healthyNode(func(n *api.Node) { n.NodePool = "fifo" }), "batch queue", doctor.Warning, "node pool fifo has one of Nomad's (fifo) with 2 jobs"},
		"no statistics":   {clientSelf, 200, healthyNode(nil), "statistics", doctor.Warning, "publish_allocation_metrics"},
		"a wrong address": {"", 0, nil, "agent", doctor.Failed, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.status == 0 {
				t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
			} else {
				playNomad(t, tc.self, tc.status, tc.node)
			}
			var r doctor.Report
			diagnoseNomad(t.Context(), agentconfig.Agent{}, false, r.Area("Nomad"))
			findings(t, &r, tc.check, tc.want, tc.text)
		})
	}
	playNomad(t, clientSelf, 200, healthyNode(nil))
	var r doctor.Report
	diagnoseNomad(t.Context(), agentconfig.Agent{PublishMetrics: true}, false, r.Area("Nomad"))
	must.Eq(t, doctor.OK, r.Worst(), must.Sprint(r.Findings))
	t.Setenv("NOMAD_ADDR", "::")
	diagnoseNomad(t.Context(), agentconfig.Agent{}, false, r.Area("Nomad"))
	findings(t, &r, "agent", doctor.Failed, "NOMAD_ADDR")
}

// An empty machine, without a configuration, a GPU, or Nomad: every part says so,
// and none keeps the others from being looked at.
func TestEmptyMachine(t *testing.T) {
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
	config := filepath.Join(t.TempDir(), "nomad.d")
	var stdout, stderr bytes.Buffer
	must.Eq(t, 1, program.Run([]string{"check", "-json", "-config", config}, &stdout, &stderr))
	must.Eq(t, "", stderr.String())
	var r doctor.Report
	must.NoError(t, json.Unmarshal(stdout.Bytes(), &r))
	findings(t, &r, "configuration", doctor.Failed, config)
	findings(t, &r, "agent", doctor.Failed, "does not answer")
	must.NoError(t, os.Mkdir(config, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(config, "a.hcl"), []byte("plugin_dir = \"/nowhere\"\nplugin \"nomad-device-gpu\" {}\n"), 0o600))
	stdout.Reset()
	must.Eq(t, 1, program.Run([]string{"check", "-config", config}, &stdout, &stderr))
	for _, text := range []string{"failed   nomad-device-gpu", "ok       nomad-driver-containerd", "failed   driver", "failed   agent"} {
		must.StrContains(t, stdout.String(), text)
	}
}
