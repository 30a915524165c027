// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// fullNode is a node of eight H100 in 80 slices each.
func fullNode(i int) *api.Node {
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	n := &api.Node{
		ID: fmt.Sprintf("%08d-1111-1111-1111-111111111111", i), Name: fmt.Sprintf("gpu-%05d", i), Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 5, Attributes: map[string]string{}, Meta: map[string]string{"rack": "r1"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 200_000}, Memory: api.NodeMemoryResources{MemoryMB: 2 << 20}},
	}
	for k := range 100 {
		n.Attributes[fmt.Sprintf("some.attribute.%d", k)] = fmt.Sprintf("value-%d", k)
	}
	for g := range 8 {
		d := &api.NodeDeviceResource{Vendor: "nvidia", Type: "slice", Name: fmt.Sprintf("H100/%d", g), Attributes: map[string]*api.Attribute{
			"model": word("NVIDIA H100 80GB HBM3"), "type": word("H100"), "memory": number(81559, "MiB"), "slice_memory": number(1024, "MiB"),
			"slices": number(80, ""), "sharing": word("mps"),
		}}
		for s := range 80 {
			d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%05d-%d::%d", i, g, s), Healthy: true})
		}
		n.NodeResources.Devices = append(n.NodeResources.Devices, d)
	}
	return n
}

// computed is how long this process has computed.
func computed(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFirstView reads all nodes of a cluster, as a new leader does.
func BenchmarkFirstView(b *testing.B) {
	for _, nodes := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%d nodes", nodes), func(b *testing.B) {
			bodies, stubs := map[string][]byte{}, make([]map[string]any, nodes)
			for i := range nodes {
				n := fullNode(i)
				text, err := json.Marshal(n)
				if err != nil {
					b.Fatal(err)
				}
				bodies[n.ID], stubs[i] = text, map[string]any{"ID": n.ID, "ModifyIndex": 5}
			}
			list, err := json.Marshal(stubs)
			if err != nil {
				b.Fatal(err)
			}
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Nomad-Index", "10")
				w.Header().Set("X-Nomad-LastContact", "0")
				if id, one := strings.CutPrefix(r.URL.Path, "/v1/node/"); one {
					_, _ = w.Write(bodies[id])
					return
				}
				_, _ = w.Write(list)
			}))
			b.Cleanup(s.Close)
			client, err := api.NewClient(&api.Config{Address: s.URL})
			if err != nil {
				b.Fatal(err)
			}
			before, reads := computed(b), 0
			for b.Loop() {
				reads += nodes
				m := NewMirror(Hardware{})
				var mu sync.Mutex
				_, _, err := NewClient(client).listNodes(b.Context(), m.known(), func(p page) {
					mu.Lock()
					defer mu.Unlock()
					p(m)
				})
				if err != nil || len(m.nodes) != nodes {
					b.Fatalf("%d nodes, %v", len(m.nodes), err)
				}
			}
			b.ReportMetric((computed(b)-before).Seconds()*1000/float64(reads), "CPU-ms/node")
			b.ReportMetric(float64(len(bodies[fullNode(0).ID]))/1024, "KiB/node")
		})
	}
}
