// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// The driver has no port: its counts lie in its state file, and are served here.
var (
	descStarts     = prometheus.NewDesc("nomad_gpu_driver_starts_total", "Starts of tasks by the containerd driver since boot, by what came of them: started, stopped, or the step that failed.", []string{"hostname", "outcome"}, nil)
	descStartTimes = prometheus.NewDesc("nomad_gpu_driver_start_seconds", "How long starts took that were done, with the image.", []string{"hostname"}, nil)
	descPulls      = prometheus.NewDesc("nomad_gpu_driver_pulls_total", "Images fetched from a registry since boot: pulled or failed.", []string{"hostname", "outcome"}, nil)
	descPullTimes  = prometheus.NewDesc("nomad_gpu_driver_pull_seconds", "How long images took to be fetched.", []string{"hostname"}, nil)
	descKills      = prometheus.NewDesc("nomad_gpu_driver_kills_total", "Tasks that the watchdog killed since boot, by reason.", []string{"hostname", "reason"}, nil)
)

// driver serves what the driver did; nothing where it never ran.
func (c collector) driver(out chan<- prometheus.Metric) {
	counts, err := c.DriverCounts()
	if err != nil {
		return
	}
	for desc, sums := range map[*prometheus.Desc]map[string]int64{descStarts: counts.Starts, descPulls: counts.Pulls, descKills: counts.Kills} {
		for name, n := range sums {
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), c.host, name)
		}
	}
	for desc, times := range map[*prometheus.Desc]gpu.Durations{descStartTimes: counts.StartTimes, descPullTimes: counts.PullTimes} {
		all, within := times.Cumulative()
		out <- prometheus.MustNewConstHistogram(desc, all, times.Seconds, within, c.host)
	}
}
