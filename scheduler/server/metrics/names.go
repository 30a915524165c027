// SPDX-License-Identifier: MPL-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// metric is one gauge.
type metric struct {
	name, help string
	labels     []string
	desc       *prometheus.Desc
	detail     string // which a scrape has to ask for; empty: every scrape has it
}

// send sends a sample with values for the labels, in order.
func (m *metric) send(out chan<- prometheus.Metric, value float64, labels ...string) {
	sample, err := prometheus.NewConstMetric(m.desc, prometheus.GaugeValue, value, labels...)
	if err != nil {
		sample = prometheus.NewInvalidMetric(m.desc, err)
	}
	out <- sample
}

// measured sends a measurement in units of its own; none if there is none.
func (m *metric) measured(out chan<- prometheus.Metric, value int64, unit float64, labels ...string) {
	if value >= 0 {
		m.send(out, float64(value)*unit, labels...)
	}
}

// all holds every metric, in the order of the documentation.
var all []*metric

func define(name, help string, labels ...string) *metric {
	m := &metric{name: "nomad_gpu_" + name, help: help, labels: labels}
	m.desc = prometheus.NewDesc(m.name, help, labels, nil)
	all = append(all, m)
	return m
}

// Details are what a scrape may ask for, beside the sums.
const (
	nodesDetail   = "nodes"
	devicesDetail = "devices"
	tasksDetail   = "tasks"
)

func detail(of, name, help string, labels ...string) *metric {
	m := define(name, help, labels...)
	m.detail = of
	return m
}

var (
	viewAge = define("view_age_seconds", "Time since the service last heard from Nomad.")
	leading = define("leading", "1 on the replica that decides.")
	leader  = define("leader_known", "1 when some replica decides.")
	dryRun  = define("dry_run", "1 when evictions are only reported, not carried out.")

	batchQueueJobs = define("batch_queue_jobs", "Jobs in Nomad's batch queue of a node pool with GPUs.", "node_pool", "type")

	nodes     = define("nodes", "Nodes with GPUs; state is ready, where Nomad starts new work, or not_ready.", "state")
	nodesIdle = define("nodes_idle", "Ready ones of them on whose GPUs no task runs and nothing is reserved.")

	devices         = define("devices", "GPUs and MIG instances of a type.", kindLabels...)
	devicesHealthy  = define("devices_healthy", "Those of them that may be used.", kindLabels...)
	devicesCordoned = define("devices_cordoned", "Those of them that take no new work.", kindLabels...)
	devicesMeasured = define("devices_measured", "Those of them whose use is measured.", kindLabels...)
	computeHeld     = define("compute_held_gpus", "Compute of them that is promised to tasks, in GPUs.", kindLabels...)
	computeUsed     = define("compute_used_gpus", "Compute in use, in GPUs, of those that are measured.", kindLabels...)
	memory          = define("memory_bytes", "Memory of them.", kindLabels...)
	memoryHeld      = define("memory_held_bytes", "Memory of them that tasks hold.", kindLabels...)
	memoryUsed      = define("memory_used_bytes", "Memory in use, measured.", kindLabels...)
	power           = define("power_watts", "Power draw of them.", kindLabels...)
	temperature     = define("temperature_max_celsius", "Temperature of the hottest of them.", kindLabels...)

	namespaceCompute = define("namespace_compute_guarantee_gpus", "Compute that is kept free for the namespace's tasks, in GPUs.", "namespace")
	namespaceMemory  = define("namespace_memory_bytes", "GPU memory that the namespace's tasks hold.", "namespace")

	queueQuota       = define("queue_quota_gpus", "GPUs that the queue is owed.", "queue")
	queueUsed        = define("queue_used_gpus", "GPUs that the queue's jobs hold.", "queue")
	queueBorrowed    = define("queue_borrowed_gpus", "The part of the use above the quota.", "queue")
	queueMemoryQuota = define("queue_memory_quota_bytes", "GPU memory that the queue is owed; absent where only GPUs are counted.", "queue")
	queueMemoryUsed  = define("queue_memory_used_bytes", "GPU memory that the queue's jobs hold.", "queue")

	pendingGroups = define("pending_groups", "Task groups that wait for GPUs; kind is quota, priority, headroom or room.", "namespace", "queue", "kind")
	pendingAllocs = define("pending_allocs", "Allocations that these groups still miss.", "namespace", "queue", "kind")
	pendingGPUs   = define("pending_gpus", "GPUs that these allocations ask for, parts as parts; 0 where no GPU that is known would do.", "namespace", "queue", "kind")
	pendingOldest = define("pending_oldest_seconds", "How long the oldest of them waits.", "namespace", "queue", "kind")

	reservedGPUs = define("reserved_gpus", "GPUs in reservations; state is open or claimed.", "namespace", "state")

	nodeReady = detail(nodesDetail, "node_ready", "1 when Nomad starts new work on the node.", "node")

	gpuInfo          = detail(devicesDetail, "device_info", "1 for every GPU and MIG instance; what it is.", "node", "uuid", "vendor", "type", "model", "mode", "sharing", "grade", "group", "mig_profile", "parent_uuid")
	gpuHealthy       = detail(devicesDetail, "device_healthy", "1 when the GPU may be used.", "node", "uuid")
	gpuCordoned      = detail(devicesDetail, "device_cordoned", "1 when the GPU takes no new work.", "node", "uuid")
	gpuMemory        = detail(devicesDetail, "device_memory_bytes", "Memory of the GPU.", "node", "uuid")
	gpuMemoryHeld    = detail(devicesDetail, "device_memory_held_bytes", "Memory that tasks hold.", "node", "uuid")
	gpuMemoryUsed    = detail(devicesDetail, "device_memory_used_bytes", "Memory in use, measured.", "node", "uuid")
	gpuComputeHeld   = detail(devicesDetail, "device_compute_held_ratio", "Compute that is promised to tasks, 0 to 1.", "node", "uuid")
	gpuComputeUsed   = detail(devicesDetail, "device_compute_used_ratio", "Compute in use, measured, 0 to 1.", "node", "uuid")
	gpuTemperature   = detail(devicesDetail, "device_temperature_celsius", "Temperature of the GPU.", "node", "uuid")
	gpuPower         = detail(devicesDetail, "device_power_watts", "Power draw of the GPU.", "node", "uuid")
	gpuInstances     = detail(devicesDetail, "device_instances", "Nomad device instances: slices, replicas, or 1.", "node", "uuid")
	gpuInstancesHeld = detail(devicesDetail, "device_instances_held", "Nomad device instances that tasks hold.", "node", "uuid")

	taskMemory    = detail(tasksDetail, "task_memory_bytes", "GPU memory that the task holds.", taskLabels...)
	taskGuarantee = detail(tasksDetail, "task_compute_guarantee_ratio", "Compute that is kept free for the task, 0 to 1.", taskLabels...)
	taskLimit     = detail(tasksDetail, "task_compute_limit_ratio", "Compute that the task may use at most, 0 to 1.", taskLabels...)
)

var (
	kindLabels = []string{"vendor", "type", "mode"}
	taskLabels = []string{"node", "uuid", "namespace", "job", "group", "task", "alloc"}
)
