package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// deviceLabels are those of dcgm-exporter, so that its dashboards and rules
// find them.
var deviceLabels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "GPU_I_PROFILE", "GPU_I_ID"}

var taskLabels = append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "namespace", "job", "task_group", "task", "alloc_id")

// gauge is one metric of a reading: a value in units of one.
type gauge struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	one   float64
	value func(hardware.Reading) int64
}

func deviceGauge(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, deviceLabels, nil), prometheus.GaugeValue, 1, value}
}

func deviceCounter(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, deviceLabels, nil), prometheus.CounterValue, 1, value}
}

// ratioGauge is a gauge of thousandths.
func ratioGauge(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, deviceLabels, nil), prometheus.GaugeValue, 1000, value}
}

// readingMetrics carry the names and units of dcgm-exporter.
var readingMetrics = []gauge{
	deviceGauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", func(r hardware.Reading) int64 { return r.SMClockMHz }),
	deviceGauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", func(r hardware.Reading) int64 { return r.MemoryClockMHz }),
	deviceGauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", func(r hardware.Reading) int64 { return r.TemperatureC }),
	deviceGauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", func(r hardware.Reading) int64 { return r.PowerWatts }),
	deviceGauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", func(r hardware.Reading) int64 { return r.GPUPercent }),
	deviceGauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", func(r hardware.Reading) int64 { return r.MemoryPercent }),
	deviceGauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", func(r hardware.Reading) int64 { return r.EncoderPercent }),
	deviceGauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", func(r hardware.Reading) int64 { return r.DecoderPercent }),
	deviceGauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", func(r hardware.Reading) int64 { return r.MemoryUsedMiB }),
	deviceGauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", freeMiB),
	deviceGauge("DCGM_FI_DEV_FB_TOTAL", "Framebuffer memory total (in MiB).", func(r hardware.Reading) int64 { return r.MemoryTotalMiB }),
	deviceCounter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", func(r hardware.Reading) int64 { return r.EnergyMilliJoules }),
	deviceGauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", func(r hardware.Reading) int64 { return r.MemoryTemperatureC }),
	deviceGauge("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", func(r hardware.Reading) int64 { return r.MemoryReservedMiB }),
	deviceGauge("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Bits of why the clocks are not higher.", func(r hardware.Reading) int64 { return r.ClockReasons }),
	deviceCounter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", func(r hardware.Reading) int64 { return r.PCIeReplays }),
	deviceCounter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors.", func(r hardware.Reading) int64 { return r.RowsCorrectable }),
	deviceCounter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors.", func(r hardware.Reading) int64 { return r.RowsUncorrectable }),
	deviceGauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed.", func(r hardware.Reading) int64 { return r.RowRemapFailed }),
	deviceCounter("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", func(r hardware.Reading) int64 { return r.ECCMemory }),
	deviceCounter("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data that all NVLinks have carried, both ways (in KiB).", func(r hardware.Reading) int64 { return r.NVLinkKiB }),
	deviceGauge("DCGM_FI_PROF_PCIE_TX_BYTES", "PCIe traffic sent (in bytes per second).", func(r hardware.Reading) int64 { return r.PCIeSentBytes }),
	deviceGauge("DCGM_FI_PROF_PCIE_RX_BYTES", "PCIe traffic received (in bytes per second).", func(r hardware.Reading) int64 { return r.PCIeReceivedBytes }),
	ratioGauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", func(r hardware.Reading) int64 { return r.GraphicsMilli }),
	ratioGauge("DCGM_FI_PROF_SM_ACTIVE", "Ratio of the multiprocessors that have work.", func(r hardware.Reading) int64 { return r.SMMilli }),
	ratioGauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor cores are active.", func(r hardware.Reading) int64 { return r.TensorMilli }),
	ratioGauge("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of the memory's bandwidth in use.", func(r hardware.Reading) int64 { return r.DRAMMilli }),
}

func freeMiB(r hardware.Reading) int64 {
	if r.MemoryTotalMiB == hardware.Absent || r.MemoryUsedMiB == hardware.Absent {
		return hardware.Absent
	}
	return r.MemoryTotalMiB - r.MemoryUsedMiB
}

var (
	descXID        = prometheus.NewDesc("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", deviceLabels, nil)
	descHealthy    = prometheus.NewDesc("nomad_gpu_healthy", "1 while the device can take new work, 0 while it has a fault.", deviceLabels, nil)
	descFault      = prometheus.NewDesc("nomad_gpu_fault_since_seconds", "Unix time since which the device has a fault.", append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "code"), nil)
	descCordoned   = prometheus.NewDesc("nomad_gpu_cordoned", "1 while the device is cordoned.", deviceLabels, nil)
	descInstances  = prometheus.NewDesc("nomad_gpu_instances", "Instances that the device offers to Nomad.", append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "group"), nil)
	descHeld       = prometheus.NewDesc("nomad_gpu_instances_held", "Instances that tasks hold.", append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "group"), nil)
	descForeign    = prometheus.NewDesc("nomad_gpu_foreign_processes", "Processes on the device that belong to no task of Nomad.", deviceLabels, nil)
	descMPSMemory  = prometheus.NewDesc("nomad_gpu_mps_server_memory_bytes", "GPU memory that the MPS server itself holds.", deviceLabels, nil)
	descMPSReady   = prometheus.NewDesc("nomad_gpu_mps_ready", "1 while the MPS control daemon has confirmed its limits.", deviceLabels, nil)
	descMPSStarts  = prometheus.NewDesc("nomad_gpu_mps_generation", "How often the MPS control daemon was started since boot.", deviceLabels, nil)
	descTaskMemory = prometheus.NewDesc("nomad_gpu_task_memory_used_bytes", "GPU memory that all processes of a task hold.", taskLabels, nil)
	descTaskLimit  = prometheus.NewDesc("nomad_gpu_task_memory_limit_bytes", "GPU memory that a task may hold.", taskLabels, nil)
	descTaskUse    = prometheus.NewDesc("nomad_gpu_task_compute_ratio", "Use of the GPU's multiprocessors by a task, 1 is all.", taskLabels, nil)
	descTaskBeside = prometheus.NewDesc("nomad_gpu_task_beside_mps_processes", "Processes of a task that use the GPU beside MPS.", taskLabels, nil)
)

// collector answers a scrape by measuring.
type collector struct {
	*monitor
	host string
	// dcgm says whether the names of dcgm-exporter are served.
	dcgm bool
}

// Describe is empty: what is there depends on the hardware.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect measures every device once.
func (c collector) Collect(out chan<- prometheus.Metric) {
	labels := map[string][]string{}
	for _, u := range c.published.units() {
		labels[u.uuid] = u.labels(c.host)
		c.unit(out, u, labels[u.uuid])
	}
	for _, m := range c.read() {
		if !c.dcgm {
			break // dcgm-exporter runs beside: its sums are not to be doubled
		}
		for _, g := range readingMetrics {
			if v := g.value(m.Reading); v != hardware.Absent {
				out <- prometheus.MustNewConstMetric(g.desc, g.kind, float64(v)/g.one, labels[m.uuid]...)
			}
		}
	}
	seen := c.look()
	for _, u := range c.published.units() {
		s, told := seen.devices[u.uuid]
		if !told {
			continue
		}
		out <- prometheus.MustNewConstMetric(descForeign, prometheus.GaugeValue, float64(s.foreign), labels[u.uuid]...)
		if u.mps != nil && s.serverMiB > 0 {
			out <- prometheus.MustNewConstMetric(descMPSMemory, prometheus.GaugeValue, float64(s.serverMiB<<20), labels[u.uuid]...)
		}
	}
	for _, o := range append(c.occupants(), seen.others...) {
		if of, ok := labels[o.holding.UUID]; ok {
			o.collect(out, of)
		}
	}
}

func (c collector) unit(out chan<- prometheus.Metric, u *unit, labels []string) {
	emit := func(d *prometheus.Desc, v float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append(labels[:len(labels):len(labels)], more...)...)
	}
	emit(descHealthy, truth(len(u.faults) == 0))
	emit(descCordoned, truth(u.cordon != ""))
	if u.parent == "" {
		emit(descXID, float64(c.health.lastXID(u.uuid)))
	}
	for _, f := range u.faults {
		emit(descFault, float64(f.Since.Unix()), f.Code)
	}
	if u.offered() {
		emit(descInstances, float64(len(u.ids())), u.group.String())
		emit(descHeld, float64(u.countHeld()), u.group.String())
	}
	if u.mps != nil {
		emit(descMPSReady, truth(u.mps.Ready))
		emit(descMPSStarts, float64(u.mps.Generation))
	}
}

func (u *unit) countHeld() int {
	if u.heldAll {
		return len(u.ids())
	}
	return len(u.held)
}

func (o occupant) collect(out chan<- prometheus.Metric, labels []string) {
	labels = append(labels[:len(labels):len(labels)], o.lease.Namespace, o.lease.Job, o.lease.Group, o.lease.Task, o.lease.AllocID)
	emit := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if o.holding.MemoryMiB > 0 {
		emit(descTaskLimit, float64(o.holding.MemoryMiB<<20))
	}
	if o.usage == nil {
		return
	}
	emit(descTaskMemory, float64(o.usage.MemoryMiB<<20))
	emit(descTaskBeside, float64(len(o.usage.BesideMPS)))
	if o.usage.Milli != hardware.Absent {
		emit(descTaskUse, float64(o.usage.Milli)/gpu.MilliPerGPU)
	}
}

func (u *unit) labels(host string) []string {
	profile, gi := "", ""
	if u.instance != nil {
		profile, gi = u.instance.Profile, strconv.Itoa(u.instance.GI)
	}
	return []string{strconv.Itoa(u.gpu.Index), u.uuid, u.gpu.PCIBusID, fmt.Sprintf("nvidia%d", u.gpu.Minor), u.gpu.Model, host, profile, gi}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metricsServer is the local endpoint that Prometheus scrapes.
type metricsServer struct {
	address string
	server  *http.Server
	done    chan struct{}
}

// serveMetrics begins to serve /metrics at an address.
func serveMetrics(m *monitor, log hclog.Logger, address string, dcgm bool) (*metricsServer, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector{m, host, dcgm}); err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &metricsServer{listener.Addr().String(), &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, make(chan struct{})}
	go func() {
		defer close(s.done)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the metrics endpoint ended", "error", err)
		}
	}()
	return s, nil
}

func (s *metricsServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		_ = s.server.Close()
	}
	<-s.done
}
