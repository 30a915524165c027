package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"
)

// plainly is a service of one whole GPU, or several.
func plainly(id string, count, priority int, extra string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "c", "Type": "service", "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d, %s
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": "1"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, id, id, priority, count, extra))
}

// evictions counts those that were carried out for a job, on a node or any.
func (h *modelRun) evictions(whom, node string) (n int) {
	for _, line := range h.log {
		if strings.Contains(line, "   evict: ") && strings.Contains(line, "job "+whom+" ") && strings.Contains(line, "node "+node) {
			n++
		}
	}
	return n
}

const noMinimum = "preemption {\n min_run_time = \"0s\"\n max_per_job = 1000\n max_per_queue = 1000\n}\n"

// crowd fills a cluster of two machines of two GPUs with work of low priority; the lowest is on
// the first.
func (h *modelRun) crowd() {
	for i := range 4 {
		h.submit(h.t.Context(), plainly(fmt.Sprintf("low%d", i), 1, 20+i, ""))
	}
	h.seconds(10)
}

// Nothing goes on a node that lacks a driver or a volume of the one that waits: Nomad would not
// start it there.
func TestNothingIsEvictedWhereADriverOrAVolumeIsMissing(t *testing.T) {
	const volume = `"Volumes": {"data": {"Type": "host", "Source": "data"}},`
	healthy := map[string]*api.DriverInfo{"docker": {Detected: true, Healthy: true}}
	for name, row := range map[string]struct {
		extra          string
		with, lacksAny func(n *api.Node)
	}{
		"a host volume": {volume, func(n *api.Node) { n.HostVolumes = map[string]*api.HostVolumeInfo{"data": {}} }, func(*api.Node) {}},
		"one that can be written": {volume, func(n *api.Node) { n.HostVolumes = map[string]*api.HostVolumeInfo{"data": {}} },
			func(n *api.Node) { n.HostVolumes = map[string]*api.HostVolumeInfo{"data": {ReadOnly: true}} }},
		"a CSI volume": {strings.ReplaceAll(volume, `"host"`, `"csi"`), func(n *api.Node) { n.CSINodePlugins = map[string]*api.CSIInfo{"ebs": {Healthy: true}} }, func(*api.Node) {}},
		"a driver":     {"", func(n *api.Node) { n.Drivers = healthy }, func(n *api.Node) { n.Drivers = map[string]*api.DriverInfo{"docker": {Detected: true}} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 2, noMinimum)
				h.refuses = func(j *modelJob, n *api.Node) string {
					if j.key.ID == "high" && n.ID != "node-1" {
						return "missing " + name
					}
					return ""
				}
				h.crowd()
				row.with(h.nodes[1])
				row.lacksAny(h.nodes[0])
				h.show(h.believed)
				h.submit(t.Context(), plainly("high", 1, 90, row.extra))
				h.seconds(3600)
				if n := h.evictions("c/high", ""); n != 1 || !strings.Contains(h.running(), "c/high") {
					t.Errorf("%d evictions, where one is enough; %s run\n%s", n, h.running(), strings.Join(h.log, "\n"))
				}
			})
		})
	}
}
