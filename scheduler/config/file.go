// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-gpu/nomad-gpu/internal/hcltext"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// file is the operator's file as written. A nil pointer is a key left out.
type file struct {
	LogLevel    *string            `hcl:"log_level"`
	Interval    *string            `hcl:"monitor_update_interval"`
	Threshold   *float64           `hcl:"resource_change_threshold"`
	Default     *string            `hcl:"default_resource_name"`
	MemoryGB    map[string]float64 `hcl:"memory_gb,optional"`
	Resources   *resourcesBlock    `hcl:"resource_name,block"`
	Nomad       *nomadBlock        `hcl:"nomad,block"`
	Listen      *listenBlock       `hcl:"listen,block"`
	Placement   *placementBlock    `hcl:"placement,block"`
	Preemption  *preemptionBlock   `hcl:"preemption,block"`
	Fairness    *fairnessBlock     `hcl:"fairness,block"`
	Rebalance   *rebalanceBlock    `hcl:"rebalance,block"`
	Reservation *reservationBlock  `hcl:"reservation,block"`
	Replica     *replicaBlock      `hcl:"replica,block"`
	Ledger      *ledgerBlock       `hcl:"ledger,block"`
	Telemetry   *telemetryBlock    `hcl:"telemetry,block"`
	Queues      []queueBlock       `hcl:"queue,block"`
}

type resourcesBlock struct {
	GPU    *string `hcl:"gpu"`
	NVIDIA *string `hcl:"nvidia"`
	AMD    *string `hcl:"amd"`
	Intel  *string `hcl:"intel"`
	NPU    *string `hcl:"npu"`
}

type nomadBlock struct {
	Address    *string `hcl:"address"`
	Region     *string `hcl:"region"`
	TokenFile  *string `hcl:"token_file"`
	CAFile     *string `hcl:"ca_file"`
	CertFile   *string `hcl:"cert_file"`
	KeyFile    *string `hcl:"key_file"`
	ServerName *string `hcl:"tls_server_name"`
	Namespace  *string `hcl:"variables_namespace"`
}

type listenBlock struct {
	Address   *string `hcl:"address"`
	Advertise *string `hcl:"advertise"`
	PageURL   *string `hcl:"page_url"`
	CertFile  *string `hcl:"cert_file"`
	KeyFile   *string `hcl:"key_file"`
	ClientCA  *string `hcl:"client_ca_file"`
	CA        *string `hcl:"ca_file"`
	MaxBody   *int64  `hcl:"max_body_bytes"`
	Rate      *int    `hcl:"requests_per_second"`
	Burst     *int    `hcl:"burst"`
	Timeout   *string `hcl:"request_timeout"`
	Conns     *int    `hcl:"max_connections"`
	PerClient *int    `hcl:"max_connections_per_client"`
	Audit     *string `hcl:"audit_file"`
}

type placementBlock struct {
	Policy        *string  `hcl:"policy"`
	GPU           *float64 `hcl:"gpu_weight"`
	Memory        *float64 `hcl:"memory_weight"`
	CPU           *float64 `hcl:"cpu_weight"`
	Fragmentation *float64 `hcl:"fragmentation_weight"`
	Measured      *float64 `hcl:"measured"`
	AvoidHot      *bool    `hcl:"avoid_hot"`
	Candidates    *int     `hcl:"candidates"`
	HeadroomWait  *string  `hcl:"headroom_wait"`
	Expected      []string `hcl:"expected_models,optional"`
}

type preemptionBlock struct {
	Enabled *bool   `hcl:"enabled"`
	DryRun  *bool   `hcl:"dry_run"`
	Rate    *int    `hcl:"max_per_minute"`
	PerJob  *int    `hcl:"max_per_job"`
	PerQ    *int    `hcl:"max_per_queue"`
	MinRun  *string `hcl:"min_run_time"`
	MinGap  *int    `hcl:"min_priority_gap"`
	Direct  *bool   `hcl:"hold_direct_jobs"`
	Prefer  *string `hcl:"prefer"`
}

type fairnessBlock struct {
	HalfLife *string `hcl:"half_life"`
	Order    *string `hcl:"order"`
}

type rebalanceBlock struct {
	Enabled  *bool   `hcl:"enabled"`
	Interval *string `hcl:"interval"`
	MaxMoves *int    `hcl:"max_moves"`
}

type reservationBlock struct {
	Default *string `hcl:"default_ttl"`
	Max     *string `hcl:"max_ttl"`
}

type replicaBlock struct {
	LockTTL *string `hcl:"lock_ttl"`
}

// Parse reads a configuration from text; name stands in errors.
func Parse(name string, text []byte) (*Config, error) {
	parsed, diags := hclparse.NewParser().ParseHCL(text, name)
	if diags.HasErrors() {
		return nil, fmt.Errorf("parse configuration: %w", hcltext.Error(diags))
	}
	var f file
	diags = gohcl.DecodeBody(parsed.Body, nil, &f)
	failed := hcltext.Types(text, diags)
	c, err := f.config(text, failed)
	if err := errors.Join(hcltext.Error(diags), err); err != nil {
		return nil, fmt.Errorf("check configuration %s:\n%w", name, err)
	}
	return c, nil
}

// reader turns written values into checked ones and keeps every complaint.
type reader struct {
	errs   []error
	failed []string // keys whose values are of a wrong type, which was said
}

// skips reports whether there is nothing of a number to look at: from is 0 where it is none.
func skips[T any](r *reader, key string, from *T) bool {
	return from == nil || slices.Contains(r.failed, key[strings.LastIndexByte(key, '.')+1:])
}

func (r *reader) complain(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

func (r *reader) duration(key string, to *time.Duration, from *string, least time.Duration) {
	if from == nil {
		return
	}
	d, err := time.ParseDuration(*from)
	switch {
	case err != nil:
		r.complain("%s %q is not a duration; write a number and a unit, such as \"30s\"", key, *from)
	case d < least:
		r.complain("%s %q is too short; the least is %s", key, *from, least)
	default:
		*to = d
	}
}

// milli reads a fraction as thousandths and refuses one that is not exact.
func (r *reader) milli(key string, to *int64, from *float64, most float64) {
	if skips(r, key, from) {
		return
	}
	m := int64(*from*1000 + 0.5)
	if *from < 0 || *from > most || abs(float64(m)-*from*1000) > 1e-6 {
		r.complain("%s %g is not a number from 0 to %g with at most three decimals", key, *from, most)
		return
	}
	*to = m
}

func abs(x float64) float64 { return max(x, -x) }

// gigabytes reads GB, which are GiB as on a card's box, into MiB.
func (r *reader) gigabytes(key string, toMiB *int64, from *float64) {
	if skips(r, key, from) {
		return
	}
	if *from < 0 || *from > maxGigabytes {
		r.complain("%s %g is not a number from 0 to %g", key, *from, float64(maxGigabytes))
		return
	}
	*toMiB = int64(*from * 1024)
}

// maxGigabytes bounds a quota of GPU memory; it only catches slips.
const maxGigabytes = 100_000_000

func (r *reader) positive(key string, to *int, from *int) {
	if skips(r, key, from) {
		return
	}
	if *from < 1 {
		r.complain("%s %d is too small; the least is 1", key, *from)
		return
	}
	*to = *from
}

func (r *reader) oneOf(key string, to *string, from *string, valid ...string) {
	if from == nil {
		return
	}
	if !slices.Contains(valid, *from) {
		r.complain("%s: %q is not valid (%s)", key, *from, strings.Join(valid, ", "))
		return
	}
	*to = *from
}

func (r *reader) hostPort(key string, to *string, from *string) {
	if from == nil {
		return
	}
	_, port, err := net.SplitHostPort(*from)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		r.complain("%s %q is not a host and a port; write one such as \"0.0.0.0:4656\"", key, *from)
		return
	}
	*to = *from
}

func (r *reader) url(key string, to *string, from *string) {
	if from == nil {
		return
	}
	u, err := url.Parse(*from)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.complain("%s %q is not a URL; write one such as \"https://gpu.example:4656\"", key, *from)
		return
	}
	*to = *from
}

// config checks the values, but for keys of a wrong type.
func (f *file) config(text []byte, failed []string) (*Config, error) {
	c, r := Default(), &reader{failed: failed}
	f.general(c, r)
	f.connections(c, r)
	f.decisions(c, r)
	for _, q := range f.Queues {
		queue, err := readQueue(q.Name, q.Body, text)
		if err != nil {
			r.errs = append(r.errs, err)
			continue
		}
		c.Queues = append(c.Queues, queue)
	}
	slices.SortFunc(c.Queues, func(a, b Queue) int { return strings.Compare(a.Name, b.Name) })
	r.errs = append(r.errs, checkQueues(c.Queues)...)
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return c, nil
}

var logLevels = []string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR"}

func (f *file) general(c *Config, r *reader) {
	set(&c.LogLevel, f.LogLevel)
	if !slices.Contains(logLevels, c.LogLevel) {
		r.complain("log_level %q is not one of %s", c.LogLevel, strings.Join(logLevels, ", "))
	}
	r.duration("monitor_update_interval", &c.MonitorInterval, f.Interval, time.Second)
	r.milli("resource_change_threshold", &c.ChangeThresholdMilli, f.Threshold, 1)
	for model, gb := range f.MemoryGB {
		if gb <= 0 || gb > 4096 {
			r.complain("memory_gb of %q: %g is not a number of GB up to 4096", model, gb)
			continue
		}
		c.ModelMemoryMiB[model] = int64(gb * 1024)
	}
	if b := f.Resources; b != nil {
		for word, name := range map[string]*string{"gpu": b.GPU, "nvidia": b.NVIDIA, "amd": b.AMD, "intel": b.Intel, "npu": b.NPU} {
			if name != nil && (*name == "" || strings.ContainsAny(*name, " \t\n")) {
				r.complain("resource_name of %q: %q is not a device name", word, *name)
			} else if name != nil {
				c.ResourceNames[word] = *name
			}
		}
	}
	set(&c.DefaultResource, f.Default)
	if c.DefaultResource != "" && c.ResourceNames[c.DefaultResource] == "" {
		r.complain("default_resource_name %q is not one of gpu, nvidia, amd, intel, npu", c.DefaultResource)
	}
}

func (f *file) connections(c *Config, r *reader) {
	if b := f.Nomad; b != nil {
		n := &c.Nomad
		set(&n.Address, b.Address)
		set(&n.Region, b.Region)
		set(&n.TokenFile, b.TokenFile)
		set(&n.CAFile, b.CAFile)
		set(&n.CertFile, b.CertFile)
		set(&n.KeyFile, b.KeyFile)
		set(&n.TLSServerName, b.ServerName)
		set(&n.VariablesNamespace, b.Namespace)
	}
	if b := f.Listen; b != nil {
		b.apply(&c.Listen, r)
	}
	if l := c.Listen; (l.CertFile == "") != (l.KeyFile == "") || l.ClientCAFile != "" && l.CertFile == "" {
		r.complain("listen: cert_file and key_file go together, and client_ca_file needs both")
	}
	if n := c.Nomad; (n.CertFile == "") != (n.KeyFile == "") {
		r.complain("nomad: cert_file and key_file go together")
	}
}

func (b *listenBlock) apply(l *Listen, r *reader) {
	r.hostPort("listen.address", &l.Address, b.Address)
	set(&l.CertFile, b.CertFile)
	set(&l.KeyFile, b.KeyFile)
	set(&l.ClientCAFile, b.ClientCA)
	set(&l.CAFile, b.CA)
	r.url("listen.advertise", &l.Advertise, b.Advertise)
	r.url("listen.page_url", &l.PageURL, b.PageURL)
	set(&l.AuditFile, b.Audit)
	r.positive("listen.requests_per_second", &l.RequestsPerSecond, b.Rate)
	r.positive("listen.burst", &l.Burst, b.Burst)
	r.duration("listen.request_timeout", &l.RequestTimeout, b.Timeout, time.Second)
	set(&l.MaxBodyBytes, b.MaxBody)
	if l.MaxBodyBytes < 1024 && !skips(r, "listen.max_body_bytes", b.MaxBody) {
		r.complain("listen.max_body_bytes %d is too small; the least is 1024", l.MaxBodyBytes)
	}
	r.positive("listen.max_connections", &l.MaxConnections, b.Conns)
	r.positive("listen.max_connections_per_client", &l.MaxConnectionsPerClient, b.PerClient)
	switch {
	case l.MaxConnectionsPerClient <= l.MaxConnections:
	case b.PerClient == nil: // all of few
		l.MaxConnectionsPerClient = l.MaxConnections
	default:
		r.complain("listen.max_connections_per_client: %d is not valid (at most max_connections, which is %d)", l.MaxConnectionsPerClient, l.MaxConnections)
	}
}

func (f *file) decisions(c *Config, r *reader) {
	if b := f.Placement; b != nil {
		b.apply(&c.Placement, r)
		c.ExpectedModels = b.Expected
		for i, model := range b.Expected {
			if strings.TrimSpace(model) == "" || slices.Contains(b.Expected[:i], model) {
				r.complain("placement.expected_models: %q is not valid (each GPU model once, such as \"H100\")", model)
			}
		}
	}
	if b := f.Preemption; b != nil {
		set(&c.Preemption.Enabled, b.Enabled)
		set(&c.Preemption.DryRun, b.DryRun)
		r.positive("preemption.max_per_minute", &c.Preemption.MaxPerMinute, b.Rate)
		r.positive("preemption.max_per_job", &c.Preemption.MaxPerJob, b.PerJob)
		r.positive("preemption.max_per_queue", &c.Preemption.MaxPerQueue, b.PerQ)
		r.duration("preemption.min_run_time", &c.Preemption.MinRunTime, b.MinRun, 0)
		r.positive("preemption.min_priority_gap", &c.Preemption.MinGap, b.MinGap)
		set(&c.Preemption.HoldDirect, b.Direct)
		r.oneOf("preemption.prefer", &c.Preemption.Prefer, b.Prefer, PreferSuspend, PreferEvict)
	}
	if b := f.Fairness; b != nil {
		r.duration("fairness.half_life", &c.HalfLife, b.HalfLife, 0)
		r.oneOf("fairness.order", &c.Order, b.Order, OrderArrival, OrderShortest)
	}
	if b := f.Rebalance; b != nil {
		set(&c.Rebalance.Enabled, b.Enabled)
		r.duration("rebalance.interval", &c.Rebalance.Interval, b.Interval, 10*time.Second)
		r.positive("rebalance.max_moves", &c.Rebalance.MaxMoves, b.MaxMoves)
	}
	if b := f.Reservation; b != nil {
		r.duration("reservation.default_ttl", &c.Reservation.DefaultTTL, b.Default, time.Second)
		r.duration("reservation.max_ttl", &c.Reservation.MaxTTL, b.Max, time.Second)
	}
	if v := c.Reservation; v.DefaultTTL > v.MaxTTL {
		r.complain("reservation: default_ttl %s is longer than max_ttl %s", v.DefaultTTL, v.MaxTTL)
	}
	if b := f.Replica; b != nil {
		r.duration("replica.lock_ttl", &c.Replica.LockTTL, b.LockTTL, 10*time.Second)
	}
	if b := f.Ledger; b != nil {
		b.apply(c, r)
	}
	if b := f.Telemetry; b != nil && b.Traces != nil {
		b.Traces.apply(&c.Traces, r)
	}
}

func (b *placementBlock) apply(p *Placement, r *reader) {
	if b.Policy != nil {
		policy, err := place.ParsePolicy(*b.Policy)
		if err != nil || *b.Policy == "" {
			r.complain("placement.policy %q is not one of BALANCED, PACK, SPREAD", *b.Policy)
		} else {
			p.Policy = policy
		}
	}
	r.milli("placement.gpu_weight", &p.Weights.GPUMilli, b.GPU, 1)
	r.milli("placement.memory_weight", &p.Weights.MemoryMilli, b.Memory, 1)
	r.milli("placement.cpu_weight", &p.Weights.CPUMilli, b.CPU, 1)
	r.milli("placement.fragmentation_weight", &p.Weights.FragmentationMilli, b.Fragmentation, 1)
	r.milli("placement.measured", &p.Weights.MeasuredMilli, b.Measured, 1)
	if b.AvoidHot != nil && !*b.AvoidHot {
		p.Weights.HeatMilli = 0
	}
	r.positive("placement.candidates", &p.Candidates, b.Candidates)
	r.duration("placement.headroom_wait", &p.Weights.HeadroomWait, b.HeadroomWait, 0)
}
