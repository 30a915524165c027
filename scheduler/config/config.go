// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Config is everything the operator can set.
type Config struct {
	LogLevel string // TRACE, DEBUG, INFO, WARN or ERROR

	// MonitorInterval is how often utilization is read from Nomad's clients;
	// ChangeThresholdMilli is the smallest change of a GPU's or a task's utilization that
	// placement takes notice of.
	MonitorInterval      time.Duration
	ChangeThresholdMilli int64

	// ResourceNames are the device types per vendor word (gpu, nvidia, amd,
	// intel, npu); DefaultResource is the word that a request without a vendor
	// means, empty for any.
	ResourceNames   map[string]string
	DefaultResource string
	// ModelMemoryMiB is the memory of a model where the hardware does not tell.
	ModelMemoryMiB map[string]int64

	Nomad  Nomad
	Listen Listen
	// ExpectedModels are GPU models of nodes that may join: what asks for one waits until
	// there is one, and is not refused.
	ExpectedModels []string
	Placement      Placement
	Preemption     Preemption
	// HalfLife is the time after which a queue's use counts half in the order of waiting
	// work; 0: past use does not count.
	HalfLife time.Duration
	// Order is the order of what waits within a queue and a priority, where the queue says nothing.
	Order       string
	Rebalance   Rebalance
	Reservation Reservation
	Replica     Replica
	Ledger      Ledger
	Prices      ledger.Prices
	Traces      Traces
	Queues      []Queue // by name
}

// Ledger is where it is kept who held which GPU when, and for how long.
type Ledger struct {
	// Path is a folder, and Postgres the URL of a database in its place. Without either
	// there is no ledger.
	Path     string
	Postgres string
	Keep     time.Duration
	MaxBytes int64
	// Measure has the use of all tasks read from Nomad's clients at all times.
	Measure bool
	// Currency is that of the prices.
	Currency string
}

// Traces says where traces of admissions go.
type Traces struct {
	// Endpoint is the URL of a collector of OpenTelemetry; empty: there are no traces.
	Endpoint string
	// CAFile is what the collector's certificate is signed by; empty: the system's roots.
	CAFile string
	// Ratio is how many of the traces that no client began are kept, 0 to 1.
	Ratio float64
}

// Nomad is how the service reaches Nomad. Empty fields are taken from the
// environment variables that the nomad command knows (NOMAD_ADDR, …).
type Nomad struct {
	Address, Region string
	// TokenFile holds the service's own ACL token; it is read again when it
	// changes.
	TokenFile                                string
	CAFile, CertFile, KeyFile, TLSServerName string
	// VariablesNamespace is where decisions, reservations and the lock live.
	VariablesNamespace string
}

// Listen is how clients reach the service.
type Listen struct {
	Address string // host:port
	// Advertise is the URL at which the other replicas and people reach this
	// one; empty: made from Address.
	Advertise string
	// PageURL is where jobs link to; empty: the page at Advertise.
	PageURL string
	// CAFile is what the other replicas' certificates are signed by; empty:
	// ClientCAFile, or the system's roots.
	CertFile, KeyFile, ClientCAFile, CAFile string
	MaxBodyBytes                            int64
	RequestsPerSecond                       int
	Burst                                   int
	RequestTimeout                          time.Duration
	// MaxConnections bounds the open connections, MaxConnectionsPerClient those of one
	// client: an IPv4 address, or the /64 network of an IPv6 address.
	MaxConnections          int
	MaxConnectionsPerClient int
	// AuditFile gets one line of JSON per decision; empty: the log.
	AuditFile string
}

// Placement is how nodes are chosen.
type Placement struct {
	Policy  place.Policy
	Weights place.Weights
	// Candidates bounds how many nodes Nomad may choose from in clusters that
	// are too large for it to look at every node.
	Candidates int
}

// DeviceNames are the operator's names of whole devices.
func (c *Config) DeviceNames() []string {
	return slices.Compact(slices.Sorted(maps.Values(c.ResourceNames)))
}

// Preemption is what the service may do to running work.
type Preemption struct {
	Enabled      bool
	DryRun       bool // say what would be done, and do nothing
	MaxPerMinute int
	// MaxPerJob is how many evictions one job bears within an hour.
	MaxPerJob int
	// MaxPerQueue is how many the jobs of one queue bear.
	MaxPerQueue int
	MinRunTime  time.Duration
	// MinGap is by how much the priority of a victim must be lower.
	MinGap int
	// Prefer is what happens when a free seat would do for a job that waits for room:
	// PreferSuspend or PreferEvict.
	Prefer string
	// HoldDirect stops jobs that came around the service while their queue
	// holds more than its limit, and has them wait for quota.
	HoldDirect bool
}

const (
	// PreferSuspend has the job take the seat, and the tasks there step aside.
	PreferSuspend = "suspend"
	// PreferEvict has work evicted for it.
	PreferEvict = "evict"
)

// Rebalance is about moving running work to better places.
type Rebalance struct {
	Enabled  bool
	Interval time.Duration
	MaxMoves int // per interval
}

// Reservation bounds how long room is held through the REST API.
type Reservation struct {
	DefaultTTL, MaxTTL time.Duration
}

// Replica is about the replicas of the service among themselves.
type Replica struct {
	// LockTTL is how long the leader lock outlives a leader that died.
	LockTTL time.Duration
}

// Default is the configuration of an empty file.
func Default() *Config {
	return &Config{
		LogLevel:             "INFO",
		MonitorInterval:      30 * time.Second,
		ChangeThresholdMilli: 50,
		ResourceNames: map[string]string{
			"gpu": "gpu", "nvidia": "nvidia/gpu", "amd": "amd/gpu", "intel": "intel/gpu", "npu": "huawei/npu",
		},
		ModelMemoryMiB: map[string]int64{
			"T4": 16 * 1024, "V100": 32 * 1024, "A100": 80 * 1024, "H100": 80 * 1024,
			"RTX3090": 24 * 1024, "RTX4090": 24 * 1024, "A6000": 48 * 1024, "A40": 48 * 1024,
		},
		Nomad: Nomad{VariablesNamespace: "default"},
		Listen: Listen{
			Address: "127.0.0.1:4656", MaxBodyBytes: 8 << 20, RequestsPerSecond: 200, Burst: 400, RequestTimeout: time.Minute,
			MaxConnections: 4096, MaxConnectionsPerClient: 512,
		},
		Placement:  Placement{Policy: place.PolicyBalanced, Weights: place.DefaultWeights(), Candidates: 64},
		Preemption: Preemption{Enabled: true, MaxPerMinute: 30, MaxPerJob: 4, MaxPerQueue: 60, MinRunTime: time.Minute, MinGap: 1, Prefer: PreferSuspend},
		HalfLife:   24 * time.Hour, Order: OrderArrival,
		Rebalance:   Rebalance{Interval: 10 * time.Minute, MaxMoves: 2},
		Reservation: Reservation{DefaultTTL: 10 * time.Minute, MaxTTL: 24 * time.Hour},
		Replica:     Replica{LockTTL: 15 * time.Second},
		Ledger:      Ledger{Path: ledgerPath(), Keep: 400 * 24 * time.Hour, MaxBytes: 2048 << 20, Measure: true},
		Traces:      Traces{Ratio: 1},
	}
}

// ledgerPath is below the folder that systemd makes for a unit with StateDirectory=, and
// that outlives the service.
func ledgerPath() string {
	if dir := os.Getenv("STATE_DIRECTORY"); dir != "" {
		return filepath.Join(dir, "ledger")
	}
	return ""
}

// Load reads the operator's file. An empty path gives the defaults.
func Load(path string) (*Config, error) {
	if path == "" {
		return Default(), nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, text)
}
