// SPDX-License-Identifier: MPL-2.0

package telemetry

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
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// deviceLabels are those of dcgm-exporter, so that its dashboards and rules
// find them.
var deviceLabels = []string{"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "GPU_I_PROFILE", "GPU_I_ID"}

var taskLabels = append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "namespace", "job", "task_group", "task", "alloc_id")

var (
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
	descSeat       = prometheus.NewDesc("nomad_gpu_task_seat", "1 for the state that a task's seat is in: waiting, resident, suspending, suspended, resuming, lost.", append(taskLabels[:len(taskLabels):len(taskLabels)], "state"), nil)
	descSeatSince  = prometheus.NewDesc("nomad_gpu_task_seat_since_seconds", "Unix time since which a task's seat is in its state.", taskLabels, nil)
	descSeatMoves  = prometheus.NewDesc("nomad_gpu_task_seat_switches_total", "How often a task's memory was moved to the host or back.", taskLabels, nil)
	descSeatBytes  = prometheus.NewDesc("nomad_gpu_task_seat_moved_bytes_total", "GPU memory of a task that was moved to the host or back.", taskLabels, nil)
	descSeatTime   = prometheus.NewDesc("nomad_gpu_task_seat_switch_seconds_total", "Time that moving a task's memory took.", taskLabels, nil)
	descSeatHost   = prometheus.NewDesc("nomad_gpu_task_seat_host_bytes", "GPU memory of a task that is on the host.", taskLabels, nil)
	descTaskBeside = prometheus.NewDesc("nomad_gpu_task_beside_mps_processes", "Processes of a task that use the GPU beside MPS.", taskLabels, nil)
)

// collector answers a scrape by measuring.
type collector struct {
	*Monitor
	host string
	// dcgm says whether the names of dcgm-exporter are served.
	dcgm bool
}

// NewCollector answers scrapes of a host; dcgm says whether the names of each vendor's own
// exporter are served.
func NewCollector(m *Monitor, host string, dcgm bool) prometheus.Collector {
	return collector{m, host, dcgm}
}

// Describe is empty: the metrics depend on the hardware.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect measures every device once.
func (c collector) Collect(out chan<- prometheus.Metric) {
	labels := map[string][]string{}
	for _, u := range c.Published.Units() {
		labels[u.UUID] = labelsOf(u, c.host)
		c.unit(out, u, labels[u.UUID])
	}
	if c.dcgm { // else the vendor's exporter runs beside: its sums are not to be doubled
		c.readings(out, labels)
	}
	c.driver(out)
	leases := c.Meter.known()
	seen := c.look(leases)
	for _, u := range c.Published.Units() {
		s, told := seen.devices[u.UUID]
		if !told {
			continue
		}
		out <- prometheus.MustNewConstMetric(descForeign, prometheus.GaugeValue, float64(s.foreign), labels[u.UUID]...)
		if u.MPS != nil && s.serverMiB > 0 {
			out <- prometheus.MustNewConstMetric(descMPSMemory, prometheus.GaugeValue, float64(s.serverMiB<<20), labels[u.UUID]...)
		}
	}
	for _, o := range append(c.occupants(leases), seen.others...) {
		if of, ok := labels[o.holding.UUID]; ok {
			o.collect(out, of)
			c.seat(out, o, of)
		}
	}
}

// readings are the metrics by the names of each vendor's own exporter.
func (c collector) readings(out chan<- prometheus.Metric, labels map[string][]string) {
	drivers := c.Published.Drivers()
	for _, m := range c.read() {
		e := exporters[m.GPU.Vendor]
		own := e.labels(labels[m.UUID], m.Unit, drivers[m.GPU.Vendor])
		for _, g := range e.gauges {
			if v := g.value(m.Reading); v != hardware.Absent {
				out <- prometheus.MustNewConstMetric(g.desc, g.kind, float64(v)/g.one, own...)
			}
		}
	}
	for _, u := range c.Published.Units() {
		if u.Parent == "" && u.GPU.Vendor == nvidiaVendor {
			out <- prometheus.MustNewConstMetric(descXID, prometheus.GaugeValue, float64(c.Health.LastXID(u.UUID)),
				exporters[nvidiaVendor].labels(labels[u.UUID], u, drivers[nvidiaVendor])...)
		}
	}
}

func (c collector) unit(out chan<- prometheus.Metric, u *plan.Unit, labels []string) {
	emit := func(d *prometheus.Desc, v float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append(labels[:len(labels):len(labels)], more...)...)
	}
	emit(descHealthy, truth(len(u.Faults) == 0))
	emit(descCordoned, truth(u.Cordon != ""))
	for _, f := range u.Faults {
		emit(descFault, float64(f.Since.Unix()), f.Code)
	}
	if u.Offered() {
		emit(descInstances, float64(len(u.IDs())), u.Group.String())
		emit(descHeld, float64(u.CountHeld()), u.Group.String())
	}
	if u.MPS != nil {
		emit(descMPSReady, truth(u.MPS.Ready))
		emit(descMPSStarts, float64(u.MPS.Generation))
	}
}

func (o occupant) collect(out chan<- prometheus.Metric, labels []string) {
	labels = append(labels[:len(labels):len(labels)], o.lease.Namespace, o.lease.Job, o.lease.Group, o.lease.Task, o.lease.AllocID)
	emit := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if o.holding.MostMiB() > 0 {
		emit(descTaskLimit, float64(o.holding.MostMiB()<<20))
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

// seat are the metrics of a task's seat, as the task driver keeps it.
func (c collector) seat(out chan<- prometheus.Metric, o occupant, labels []string) {
	s := o.seat
	if s == nil {
		return
	}
	labels = append(labels[:len(labels):len(labels)], o.lease.Namespace, o.lease.Job, o.lease.Group, o.lease.Task, o.lease.AllocID)
	host := int64(0)
	if s.State == gpu.SeatSuspended {
		host = s.MemoryMiB << 20
	}
	out <- prometheus.MustNewConstMetric(descSeat, prometheus.GaugeValue, 1, append(labels[:len(labels):len(labels)], string(s.State))...)
	out <- prometheus.MustNewConstMetric(descSeatSince, prometheus.GaugeValue, float64(s.Since.Unix()), labels...)
	out <- prometheus.MustNewConstMetric(descSeatMoves, prometheus.CounterValue, float64(s.Switches), labels...)
	out <- prometheus.MustNewConstMetric(descSeatBytes, prometheus.CounterValue, float64(s.MovedMiB<<20), labels...)
	out <- prometheus.MustNewConstMetric(descSeatTime, prometheus.CounterValue, float64(s.SwitchMS)/1000, labels...)
	out <- prometheus.MustNewConstMetric(descSeatHost, prometheus.GaugeValue, float64(host), labels...)
}

// nodeOf is the name of the device node below /dev.
func nodeOf(u *plan.Unit) string {
	if u.GPU.Vendor == nvidiaVendor {
		return fmt.Sprintf("nvidia%d", u.GPU.Minor)
	}
	return fmt.Sprintf("dri/renderD%d", u.GPU.Minor)
}

func labelsOf(u *plan.Unit, host string) []string {
	profile, gi := "", ""
	if u.Instance != nil {
		profile, gi = u.Instance.Profile, strconv.Itoa(u.Instance.GI)
	}
	return []string{strconv.Itoa(u.GPU.Index), u.UUID, u.GPU.PCIBusID, nodeOf(u), u.GPU.Model, host, profile, gi}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Server is the local endpoint that Prometheus scrapes.
type Server struct {
	Address string
	server  *http.Server
	done    chan struct{}
}

// Serve begins to serve /metrics at an address.
func Serve(m *Monitor, log hclog.Logger, address string, dcgm bool) (*Server, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(NewCollector(m, host, dcgm)); err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &Server{listener.Addr().String(), &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, make(chan struct{})}
	go func() {
		defer close(s.done)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the metrics endpoint ended", "error", err)
		}
	}()
	return s, nil
}

func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		_ = s.server.Close()
	}
	<-s.done
}
