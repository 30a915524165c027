// SPDX-License-Identifier: MPL-2.0

// Package metrics serves the cluster's GPUs to Prometheus.
//
// Every figure comes from the snapshot that the page shows too: a scrape sends
// no request, and two replicas tell the same. Names start with nomad_gpu_ and end
// in their unit: bytes, celsius, watts, seconds, or ratio (0 to 1). What was not
// measured has no sample at all, so that it is not taken for zero.
//
// A scrape has sums, whose number does not grow with the cluster. Samples of each node, device
// or task are behind the parameter detail: of 1,000 nodes they are ten megabytes.
package metrics

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Path is where the metrics are, below the service's address.
const Path = "/metrics"

// Guard serves what is made of the picture, as far as the caller may see it.
type Guard interface {
	Guarded(serve func(w http.ResponseWriter, r *http.Request, c *view.Cluster) error) http.Handler
}

// Register adds the handler with a function such as http.ServeMux's Handle.
// The service's own metrics (latencies, the Go runtime) come from own, which
// may be nil. Whether the service has a picture at all is told by /readyz: a
// blind service answers 503, and the scrape fails.
func Register(handle func(pattern string, h http.Handler), guard Guard, own prometheus.Gatherer, now func() time.Time) {
	handle("GET "+Path, guard.Guarded(func(w http.ResponseWriter, r *http.Request, c *view.Cluster) error {
		p := picture{c: c, now: now(), details: map[string]bool{}}
		for key, values := range r.URL.Query() {
			for _, value := range values {
				if key != "detail" || value != nodesDetail && value != devicesDetail && value != tasksDetail {
					return &admit.Refusal{Status: http.StatusBadRequest, Text: fmt.Sprintf("%s: %q is not valid (detail is nodes, devices or tasks, and may be given more than once)", key, value)}
				}
				p.details[value] = true
			}
		}
		registry := prometheus.NewRegistry()
		if err := registry.Register(p); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
		gatherers := prometheus.Gatherers{registry}
		if own != nil {
			gatherers = append(gatherers, own)
		}
		promhttp.HandlerFor(gatherers, promhttp.HandlerOpts{}).ServeHTTP(w, r)
		return nil
	}))
}

const mebibyte = 1 << 20

// picture is a collector of one picture at one moment.
type picture struct {
	c       *view.Cluster
	now     time.Time
	details map[string]bool
}

// Describe sends every description.
func (p picture) Describe(out chan<- *prometheus.Desc) {
	for _, m := range all {
		out <- m.desc
	}
}

// Collect sends every sample.
func (p picture) Collect(out chan<- prometheus.Metric) {
	p.service(out)
	p.nodes(out)
	for i := range p.c.Queues {
		queue(out, &p.c.Queues[i])
	}
	p.pending(out)
	p.reservations(out)
}

func (p picture) service(out chan<- prometheus.Metric) {
	viewAge.send(out, max(0, p.now.Sub(p.c.Synced).Seconds()))
	leading.send(out, truth(p.c.Leading))
	leader.send(out, truth(p.c.Leader != ""))
	dryRun.send(out, truth(p.c.DryRun))
	for _, q := range p.c.BatchQueues {
		batchQueueJobs.send(out, float64(q.Jobs), q.Pool, q.Type)
	}
}

// kind is a type of GPU that is used in one way.
type kind struct{ vendor, model, mode string }

// sums are what GPUs have together.
type sums struct {
	devices, healthy, cordoned, measured                     float64
	computeHeld, computeUsed, memory, memoryHeld, memoryUsed float64
	power, temperature                                       float64
	memoryMeasured, powerMeasured, temperatureMeasured       bool
}

// nodes counts each node and each GPU by its name once: a machine that was installed anew is a
// second node of its name, with the same GPUs. Ready ones count first.
func (p picture) nodes(out chan<- prometheus.Metric) {
	told := map[[2]string]bool{}
	state, idle := map[bool]float64{}, 0.0
	kinds, held := map[kind]*sums{}, map[string][2]float64{}
	reserved := map[string]bool{}
	for i := range p.c.Holds {
		if h := &p.c.Holds[i]; h.ClaimedBy == "" {
			reserved[h.NodeID] = true
		}
	}
	for _, ready := range []bool{true, false} {
		for i := range p.c.Nodes {
			n := &p.c.Nodes[i]
			if n.Ready() != ready || len(n.GPUs) == 0 {
				continue
			}
			if at := [2]string{n.Name}; !told[at] {
				told[at] = true
				state[ready]++
				if ready && !reserved[n.ID] && !slices.ContainsFunc(n.GPUs, func(g view.GPU) bool { return !g.Idle() }) {
					idle++
				}
				if p.details[nodesDetail] {
					nodeReady.send(out, truth(ready), n.Name)
				}
			}
			for k := range n.GPUs {
				if at := [2]string{n.Name, n.GPUs[k].UUID}; !told[at] {
					told[at] = true
					p.device(out, n, &n.GPUs[k], kinds, held)
				}
			}
		}
	}
	nodes.send(out, state[true], "ready")
	nodes.send(out, state[false], "not_ready")
	nodesIdle.send(out, idle)
	for of, s := range kinds {
		s.send(out, of)
	}
	for namespace, sum := range held {
		namespaceCompute.send(out, sum[0], namespace)
		namespaceMemory.send(out, sum[1], namespace)
	}
}

func (p picture) device(out chan<- prometheus.Metric, n *view.Node, g *view.GPU, kinds map[kind]*sums, held map[string][2]float64) {
	of := kind{g.Vendor, g.Type, g.Mode}
	if kinds[of] == nil {
		kinds[of] = &sums{}
	}
	kinds[of].add(g)
	for i := range g.Holders {
		h := &g.Holders[i]
		sum := held[h.Namespace]
		held[h.Namespace] = [2]float64{sum[0] + float64(h.GuaranteeMilli)/1000, sum[1] + float64(h.MemoryMiB)*mebibyte}
	}
	if p.details[devicesDetail] {
		device(out, n, g)
	}
	if p.details[tasksDetail] {
		tasks(out, n, g)
	}
}

func (s *sums) add(g *view.GPU) {
	s.devices++
	s.healthy += truth(g.Healthy)
	s.cordoned += truth(g.Cordoned)
	s.computeHeld += float64(g.HeldMilli) / 1000
	s.memory += float64(g.MemoryMiB) * mebibyte
	s.memoryHeld += float64(g.HeldMemoryMiB) * mebibyte
	if v := g.Measured.Milli; v >= 0 {
		s.measured++
		s.computeUsed += float64(v) / 1000
	}
	if v := g.Measured.MemoryMiB; v >= 0 {
		s.memoryMeasured = true
		s.memoryUsed += float64(v) * mebibyte
	}
	if v := g.Measured.PowerW; v >= 0 {
		s.powerMeasured = true
		s.power += float64(v)
	}
	if v := g.Measured.TemperatureC; v >= 0 {
		s.temperatureMeasured = true
		s.temperature = max(s.temperature, float64(v))
	}
}

func (s *sums) send(out chan<- prometheus.Metric, of kind) {
	for _, one := range []struct {
		m     *metric
		value float64
		known bool
	}{
		{devices, s.devices, true}, {devicesHealthy, s.healthy, true}, {devicesCordoned, s.cordoned, true}, {devicesMeasured, s.measured, true},
		{computeHeld, s.computeHeld, true}, {computeUsed, s.computeUsed, s.measured > 0},
		{memory, s.memory, true}, {memoryHeld, s.memoryHeld, true}, {memoryUsed, s.memoryUsed, s.memoryMeasured},
		{power, s.power, s.powerMeasured}, {temperature, s.temperature, s.temperatureMeasured},
	} {
		if one.known {
			one.m.send(out, one.value, of.vendor, of.model, of.mode)
		}
	}
}

func device(out chan<- prometheus.Metric, n *view.Node, g *view.GPU) {
	at := []string{n.Name, g.UUID}
	gpuInfo.send(out, 1, n.Name, g.UUID, g.Vendor, g.Type, g.Model, g.Mode, g.Sharing, g.Grade, g.Group, g.Profile, g.ParentUUID)
	gpuHealthy.send(out, truth(g.Healthy), at...)
	gpuCordoned.send(out, truth(g.Cordoned), at...)
	gpuMemory.send(out, float64(g.MemoryMiB)*mebibyte, at...)
	gpuMemoryHeld.send(out, float64(g.HeldMemoryMiB)*mebibyte, at...)
	gpuComputeHeld.send(out, float64(g.HeldMilli)/1000, at...)
	gpuInstances.send(out, float64(len(g.Instances)), at...)
	gpuInstancesHeld.send(out, float64(g.HeldInstances), at...)
	gpuMemoryUsed.measured(out, g.Measured.MemoryMiB, mebibyte, at...)
	gpuComputeUsed.measured(out, g.Measured.Milli, 0.001, at...)
	gpuTemperature.measured(out, g.Measured.TemperatureC, 1, at...)
	gpuPower.measured(out, g.Measured.PowerW, 1, at...)
}

// tasks sends the holders of a GPU. Those that the caller may not see have one
// name, and are added up.
func tasks(out chan<- prometheus.Metric, n *view.Node, g *view.GPU) {
	type sums struct{ memory, guarantee, limit float64 }
	found := map[[7]string]*sums{}
	var order [][7]string
	for _, h := range g.Holders {
		key := [7]string{n.Name, g.UUID, h.Namespace, h.JobID, h.Group, h.Task, h.AllocID}
		s := found[key]
		if s == nil {
			s = &sums{}
			found[key] = s
			order = append(order, key)
		}
		s.memory += float64(h.MemoryMiB) * mebibyte
		s.guarantee += float64(h.GuaranteeMilli) / 1000
		s.limit += float64(h.LimitMilli) / 1000
	}
	for _, key := range order {
		s := found[key]
		taskMemory.send(out, s.memory, key[:]...)
		taskGuarantee.send(out, s.guarantee, key[:]...)
		taskLimit.send(out, s.limit, key[:]...)
	}
}

func queue(out chan<- prometheus.Metric, q *view.Queue) {
	queueQuota.send(out, float64(q.QuotaMilli)/1000, q.Name)
	queueUsed.send(out, float64(q.UsedMilli)/1000, q.Name)
	queueBorrowed.send(out, float64(q.BorrowedMilli)/1000, q.Name)
	queueMemoryUsed.send(out, float64(q.UsedMemoryMiB)*mebibyte, q.Name)
	if q.QuotaMemoryMiB > 0 {
		queueMemoryQuota.send(out, float64(q.QuotaMemoryMiB)*mebibyte, q.Name)
	}
}

func (p picture) pending(out chan<- prometheus.Metric) {
	type key struct{ namespace, queue, kind string }
	groups, allocs, gpus, oldest := map[key]float64{}, map[key]float64{}, map[key]float64{}, map[key]float64{}
	for _, w := range p.c.Pending {
		k := key{w.Namespace, w.Queue, w.Kind}
		groups[k]++
		allocs[k] += float64(w.Missing)
		gpus[k] += float64(w.Milli) / 1000
		oldest[k] = max(oldest[k], p.now.Sub(w.Since).Seconds())
	}
	for k := range groups {
		pendingGroups.send(out, groups[k], k.namespace, k.queue, k.kind)
		pendingAllocs.send(out, allocs[k], k.namespace, k.queue, k.kind)
		pendingGPUs.send(out, gpus[k], k.namespace, k.queue, k.kind)
		pendingOldest.send(out, oldest[k], k.namespace, k.queue, k.kind)
	}
}

func (p picture) reservations(out chan<- prometheus.Metric) {
	type key struct{ namespace, state string }
	gpus := map[key]float64{}
	for _, h := range p.c.Holds {
		state := "open"
		if h.ClaimedBy != "" {
			state = "claimed"
		}
		gpus[key{h.Namespace, state}] += float64(h.Milli) / 1000
	}
	for k, v := range gpus {
		reservedGPUs.send(out, v, k.namespace, k.state)
	}
}

func truth(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
