package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Config is everything the operator can set.
type Config struct {
	LogLevel string // TRACE, DEBUG, INFO, WARN or ERROR

	// MonitorInterval is how often utilisation is read from Nomad's clients;
	// ChangeThresholdMilli is the smallest change of a GPU's utilisation that
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

	Nomad       Nomad
	Listen      Listen
	Placement   Placement
	Preemption  Preemption
	Rebalance   Rebalance
	Reservation Reservation
	Replica     Replica
	Queues      []Queue // by name
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
	MaxPerJob  int
	MinRunTime time.Duration
	// MinGap is by how much the priority of a victim must be lower.
	MinGap int
	// HoldDirect stops jobs that came around the service while their queue
	// holds more than its limit, and has them wait for quota.
	HoldDirect bool
}

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
		Nomad:       Nomad{VariablesNamespace: "default"},
		Listen:      Listen{Address: "127.0.0.1:4656", MaxBodyBytes: 8 << 20, RequestsPerSecond: 200, Burst: 400, RequestTimeout: time.Minute},
		Placement:   Placement{Policy: place.PolicyBalanced, Weights: place.DefaultWeights(), Candidates: 64},
		Preemption:  Preemption{Enabled: true, MaxPerMinute: 30, MaxPerJob: 4, MinRunTime: time.Minute, MinGap: 1},
		Rebalance:   Rebalance{Interval: 10 * time.Minute, MaxMoves: 2},
		Reservation: Reservation{DefaultTTL: 10 * time.Minute, MaxTTL: 24 * time.Hour},
		Replica:     Replica{LockTTL: 15 * time.Second},
	}
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
