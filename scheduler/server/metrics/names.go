package metrics

import "github.com/prometheus/client_golang/prometheus"

// metric is one gauge.
type metric struct {
	name, help string
	labels     []string
	desc       *prometheus.Desc
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

var (
	viewAge = define("view_age_seconds", "Time since the service last heard from Nomad.")
	leading = define("leading", "1 on the replica that decides.")
	leader  = define("leader_known", "1 when some replica decides.")
	dryRun  = define("dry_run", "1 when evictions are only reported, not carried out.")

	nodeReady = define("node_ready", "1 when Nomad starts new work on the node.", "node")

	gpuInfo          = define("device_info", "1 for every GPU and MIG instance; what it is.", "node", "uuid", "vendor", "type", "model", "mode", "sharing", "grade", "group", "mig_profile", "parent_uuid")
	gpuHealthy       = define("device_healthy", "1 when the GPU may be used.", "node", "uuid")
	gpuCordoned      = define("device_cordoned", "1 when the GPU takes no new work.", "node", "uuid")
	gpuMemory        = define("device_memory_bytes", "Memory of the GPU.", "node", "uuid")
	gpuMemoryHeld    = define("device_memory_held_bytes", "Memory that tasks hold.", "node", "uuid")
	gpuMemoryUsed    = define("device_memory_used_bytes", "Memory in use, measured.", "node", "uuid")
	gpuComputeHeld   = define("device_compute_held_ratio", "Compute that is promised to tasks, 0 to 1.", "node", "uuid")
	gpuComputeUsed   = define("device_compute_used_ratio", "Compute in use, measured, 0 to 1.", "node", "uuid")
	gpuTemperature   = define("device_temperature_celsius", "Temperature of the GPU.", "node", "uuid")
	gpuPower         = define("device_power_watts", "Power draw of the GPU.", "node", "uuid")
	gpuInstances     = define("device_instances", "Nomad device instances: slices, replicas, or 1.", "node", "uuid")
	gpuInstancesHeld = define("device_instances_held", "Nomad device instances that tasks hold.", "node", "uuid")

	taskMemory    = define("task_memory_bytes", "GPU memory that the task holds.", taskLabels...)
	taskGuarantee = define("task_compute_guarantee_ratio", "Compute that is kept free for the task, 0 to 1.", taskLabels...)
	taskLimit     = define("task_compute_limit_ratio", "Compute that the task may use at most, 0 to 1.", taskLabels...)

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
)

var taskLabels = []string{"node", "uuid", "namespace", "job", "group", "task", "alloc"}
