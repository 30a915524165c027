// SPDX-License-Identifier: MPL-2.0

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

// portTaken is what Nomad says where a static port is taken, which the service does not see.
const portTaken = "network: reserved port collision http=8080"

// refuseOn has Nomad not start a job on the nodes of which no returns true.
func (h *modelRun) refuseOn(job string, no func(node string) bool) {
	h.refuses = func(j *modelJob, n *api.Node) string {
		if j.key.ID == job && no(n.ID) {
			return portTaken
		}
		return ""
	}
}

// Where Nomad started nothing although room was made, none is made again: other nodes are tried,
// each once.
func TestRoomIsMadeOnceOnEachNode(t *testing.T) {
	for good := range 3 {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 3, 2, noMinimum)
			h.refuseOn("high", func(node string) bool { return node != fmt.Sprintf("node-%d", good) })
			h.crowd()
			h.submit(t.Context(), plainly("low4", 1, 20, ""))
			h.submit(t.Context(), plainly("low5", 1, 20, ""))
			h.seconds(5)
			h.submit(t.Context(), plainly("high", 1, 90, ""))
			h.seconds(6 * 3600)
			for i := range h.nodes {
				if n := h.evictions("c/high", fmt.Sprintf("n%d:", i)); n > 1 {
					t.Errorf("%d evictions on node %d", n, i)
				}
			}
			if !strings.Contains(h.running(), "c/high") {
				t.Errorf("node-%d could take it, and %s run\n%s", good, h.running(), strings.Join(h.log, "\n"))
			}
		})
	}
}

// A node that changed is tried again, and so are all for a job that was submitted again, also by
// a replica that did not see the attempts.
func TestANodeThatChangedIsTriedAgain(t *testing.T) {
	for name, row := range map[string]struct {
		then func(h *modelRun)
		want int
	}{
		"nothing":                   {func(*modelRun) {}, 2},
		"another replica":           {func(h *modelRun) { h.lead(h.t.Context()) }, 2},
		"one node changes":          {func(h *modelRun) { h.setEligibility(h.nodes[0], "eligible") }, 3},
		"the job is submitted anew": {func(h *modelRun) { h.submit(h.t.Context(), plainly("high", 1, 90, `"Meta": {"v": "2"},`)) }, 4},
		"a day goes by":             {func(h *modelRun) { h.seconds(86400) }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 2, noMinimum)
				h.refuseOn("high", func(string) bool { return true })
				h.crowd()
				h.submit(t.Context(), plainly("high", 1, 90, ""))
				h.seconds(3600)
				if n := h.evictions("c/high", ""); n != 2 {
					t.Fatalf("%d evictions on two nodes\n%s", n, strings.Join(h.log, "\n"))
				}
				row.then(h)
				h.seconds(3 * 3600)
				if n := h.evictions("c/high", ""); n != row.want {
					t.Errorf("%d evictions in all, want %d\n%s", n, row.want, strings.Join(h.log, "\n"))
				}
			})
		})
	}
}

// Where Nomad starts many groups on none of their candidates, they are registered again one by one.
func TestManyGroupsThatNomadDoesNotStartGetOtherCandidatesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 8
		h := newRun(t, 150, 1, noMinimum)
		h.refuses = func(*modelJob, *api.Node) string { return portTaken }
		for i := range many {
			h.submit(t.Context(), plainly(fmt.Sprintf("j%d", i), 1, 50, ""))
		}
		registered := func() (n int) {
			for _, j := range h.jobs {
				n += len(j.versions)
			}
			return n
		}
		for range 300 {
			before := registered()
			if h.seconds(1); registered() > before+1 {
				t.Errorf("%d were registered within a second", registered()-before)
			}
		}
		if n := registered(); n <= 2*many || n > 3*many {
			t.Errorf("in five minutes there were %d registrations of %d jobs", n, many)
		}
	})
}

// In a large cluster a group is bound to some nodes. Where Nomad starts it on none of them, it gets
// others, and in the end every node: it is registered again twice, and not for ever.
func TestAGroupThatNomadDoesNotStartGetsOtherCandidates(t *testing.T) {
	for _, only := range []string{"node-7", "node-60", "node-120", "none"} {
		t.Run(only, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 150, 1, noMinimum)
				h.refuseOn("j", func(node string) bool { return node != only })
				h.submit(t.Context(), plainly("j", 1, 50, ""))
				h.seconds(600)
				if runs := h.running() == "c/j"; runs == (only == "none") {
					t.Errorf("after ten minutes runs %q, blocked %v\n%s", h.running(), h.jobs["c/j"].blocked, strings.Join(h.log, "\n"))
				}
				if n := len(h.jobs["c/j"].versions); n > 3 {
					t.Errorf("it was registered %d times", n)
				}
			})
		})
	}
}

// A gang whose tasks take a node each evicts as any other.
func TestAGangOnNodesOfItsOwnEvicts(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"anywhere": func(s string) string { return s },
		"distinct_hosts": func(s string) string {
			return strings.Replace(s, `"Name": "g", `, `"Name": "g", "Constraints": [{"Operand": "distinct_hosts", "RTarget": "true"}], `, 1)
		},
		"of the job": func(s string) string {
			return strings.Replace(s, `"TaskGroups"`, `"Constraints": [{"Operand": "distinct_hosts", "RTarget": "true"}], "TaskGroups"`, 1)
		},
		"distinct_property": func(s string) string {
			return strings.Replace(s, `"Name": "g", `, `"Name": "g", "Constraints": [{"Operand": "distinct_property", "LTarget": "${node.unique.id}"}], `, 1)
		},
		"a static port": func(s string) string {
			return strings.Replace(s, `"Name": "g", `, `"Name": "g", "Networks": [{"ReservedPorts": [{"Label": "http", "Value": 8080}]}], `, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 2, noMinimum)
				h.crowd()
				h.submit(t.Context(), json.RawMessage(change(string(gangJob("gang", 2, 90)))))
				h.seconds(300)
				on := map[string]bool{}
				for _, a := range h.allocs {
					if a.stub.JobID == "gang" {
						on[a.stub.NodeID] = true
					}
				}
				if n := h.holds(h.jobs["c/gang"]); n != 2 || name != "anywhere" && len(on) != 2 {
					t.Errorf("%d of 2 run, on %v\n%s", n, on, strings.Join(h.log, "\n"))
				}
				if n := h.evictions("c/gang", ""); n != 2 {
					t.Errorf("%d evictions, where two are enough", n)
				}
			})
		})
	}
}

// What is evicted is registered twice, to wait and to start again.
func TestAnEvictionRegistersTheVictimTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 1, noMinimum)
		h.submit(t.Context(), plainly("low", 1, 20, ""))
		h.seconds(10)
		h.submit(t.Context(), plainly("high", 1, 90, ""))
		h.seconds(600)
		if n := len(h.jobs["c/low"].versions) - 1; n != 1 || h.running() != "c/high" {
			t.Errorf("the victim was registered %d times more; %s run", n, h.running())
		}
		h.stop(h.jobs["c/high"])
		h.seconds(600)
		if low, high := len(h.jobs["c/low"].versions), len(h.jobs["c/high"].versions); low != 3 || high != 2 || h.running() != "c/low" {
			t.Errorf("the victim was registered %d times, what it left for %d times; %s run", low, high, h.running())
		}
	})
}
