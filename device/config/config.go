// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Config is the plugin's configuration, checked.
type Config struct {
	Enabled         bool
	Ignored         map[string]bool
	Period          time.Duration
	StateDir        string
	DataDir         string
	HashicorpMIG    bool
	ModeChangeDelay time.Duration
	NvidiaSMI       string
	CDIHook         string // empty: the plugin itself
	Driver          Driver
	Rules           []Rule
	Fallback        Sharing
	MPS             MPS
	ShmMiB          int64
	HAMi            *gpu.HAMiState
	Seats           *gpu.SeatRules // nil without a suspend block
	Health          Health
	Metrics         string
	DCGMNames       bool
	Simulation      *Simulation
	Vendors         map[string]bool
	MemoryLimits    bool
	// Idle are warnings of settings that have no effect.
	Idle []string
}

// Health says how devices are watched.
type Health struct {
	Interval, Timeout, Measure time.Duration
	Ignore                     map[string]bool
	// ApplicationXIDs are the faults of programs, FatalXIDs those of GPUs, beside those
	// that are known.
	ApplicationXIDs, FatalXIDs []uint64
}

// Driver says where NVIDIA's driver was installed to.
type Driver struct {
	// Root is the root of the file system that it was installed into, DevRoot has the
	// device nodes; empty is Root, or "/" where that has none.
	Root, DevRoot string
	// LibraryPaths are more directories to look for its libraries in.
	LibraryPaths []string
}

// parse checks a configuration. Its error holds every mistake, each with
// the key, the value and the valid values.
func parse(raw rawConfig) (*Config, error) {
	p := &parser{}
	c := &Config{
		Enabled:         raw.Enabled,
		Ignored:         map[string]bool{},
		Period:          p.duration("fingerprint_period", raw.FingerprintPeriod, time.Second),
		StateDir:        p.stateDir(raw.StateDir),
		DataDir:         p.absolute("data_dir", raw.DataDir),
		HashicorpMIG:    p.oneOf("mig_names", raw.MIGNames, "profile", "hashicorp") == "hashicorp",
		ModeChangeDelay: p.duration("mode_change_delay", raw.ModeChangeDelay, 0),
		NvidiaSMI:       raw.NvidiaSMI,
		CDIHook:         p.path("cdi_hook", raw.CDIHook),
		Driver:          p.driver(raw),
		MPS:             p.mps(raw.MPS),
		HAMi:            p.hami(raw.HAMi),
		Seats:           p.suspend(raw.Suspend),
		Health:          p.health(raw.Health),
		Metrics:         p.metrics(raw.Metrics),
		Simulation:      p.simulation(raw.Simulation),
	}
	c.Vendors = p.vendors(raw.Vendors)
	c.MemoryLimits = raw.MemoryLimits
	c.DCGMNames = raw.Metrics != nil && raw.Metrics.DCGM
	c.ShmMiB = p.shmSize(c.MPS.ShmSize)
	for _, id := range raw.IgnoredGPUIDs {
		c.Ignored[id] = true
	}
	c.Fallback = p.sharing("", raw.rawSharing, Sharing{})
	for i, r := range raw.GPUs {
		rule := p.rule(fmt.Sprintf("gpu[%d].", i), r, c.Fallback)
		if rule.Demand != nil {
			rule.Demand.Rule = i
		}
		c.Rules = append(c.Rules, rule)
	}
	p.needHAMi(c)
	p.checkSuspend(c.Fallback, c.Rules, c.Seats)
	c.Idle = idle(raw, c)
	return c, errors.Join(p.problems...)
}

func (p *parser) stateDir(value string) string {
	dir := p.absolute("state_dir", value)
	if err := mps.CheckStateDir(dir); err != nil {
		p.problems = append(p.problems, err)
	}
	return dir
}

// vendors are those whose devices are looked for; none means all.
func (p *parser) vendors(names []string) map[string]bool {
	wanted, known := map[string]bool{}, slices.Sorted(maps.Keys(Vendors))
	for i, name := range names {
		wanted[p.oneOf(fmt.Sprintf("vendors[%d]", i), name, known...)] = true
	}
	for _, name := range known {
		wanted[name] = wanted[name] || len(names) == 0
	}
	return wanted
}

func (p *parser) driver(raw rawConfig) Driver {
	d := Driver{Root: p.absolute("driver_root", raw.DriverRoot), DevRoot: p.path("dev_root", raw.DevRoot)}
	for i, dir := range raw.LibraryPath {
		d.LibraryPaths = append(d.LibraryPaths, p.absolute(fmt.Sprintf("library_path[%d]", i), dir))
	}
	return d
}

func (p *parser) mps(raw *MPS) MPS {
	if raw == nil {
		raw = &MPS{Control: "nvidia-cuda-mps-control", MultiUser: true, ShmSize: "1GiB", Protocol: "auto"}
	}
	if raw.Control == "" {
		p.fail("mps.control is empty; write the path or the name of nvidia-cuda-mps-control")
	}
	if raw.MaxClients < 0 || raw.MaxClients > mps.MostClients {
		p.fail("mps.max_clients %d is not valid (from 1 to %d, which an MPS server takes with CUDA 13.1 and later, or 0 for the limit of the GPU and CUDA version)", raw.MaxClients, mps.MostClients)
	}
	switch {
	case raw.Protocol != "auto" && raw.Protocol != "2" && raw.Protocol != "3":
		p.fail("mps.protocol %q is not valid (\"auto\", \"2\" or \"3\")", raw.Protocol)
	case raw.Protocol == "3" && raw.Static:
		p.fail("mps.protocol \"3\" is not valid with static_partitioning, which is of protocol 2 (write \"auto\" or \"2\")")
	}
	return *raw
}

func (p *parser) shmSize(value string) int64 {
	mib, err := gpu.ParseMemory(value)
	if err != nil || mib < 1 {
		p.fail("mps.shm_size %q is not a size of at least 1 MiB; write one such as \"1GiB\"", value)
	}
	return mib
}

func (p *parser) hami(raw *rawHAMi) *gpu.HAMiState {
	if raw == nil {
		return nil
	}
	return &gpu.HAMiState{Library: p.absolute("hami.library", raw.Library), LockDir: p.absolute("hami.lock_dir", raw.LockDir)}
}

func (p *parser) health(raw *rawHealth) Health {
	if raw == nil {
		raw = &rawHealth{Interval: "5s", Timeout: "5s", Measure: "2s"}
	}
	c := Health{
		Interval:        p.duration("health.interval", raw.Interval, 100*time.Millisecond),
		Timeout:         p.duration("health.timeout", raw.Timeout, 100*time.Millisecond),
		Measure:         p.duration("health.measure", raw.Measure, 100*time.Millisecond),
		Ignore:          map[string]bool{},
		ApplicationXIDs: raw.ApplicationXIDs, FatalXIDs: raw.FatalXIDs,
	}
	for _, code := range raw.Ignore {
		c.Ignore[code] = true
	}
	for _, n := range c.FatalXIDs {
		if slices.Contains(c.ApplicationXIDs, n) {
			p.fail("health: XID %d is both in application_xids and in fatal_xids", n)
			break
		}
	}
	return c
}

func (p *parser) metrics(raw *rawMetrics) string {
	if raw == nil {
		return ""
	}
	if _, _, err := net.SplitHostPort(raw.Address); err != nil {
		p.fail("metrics.address %q is not host:port, such as 127.0.0.1:9836", raw.Address)
	}
	return raw.Address
}

func (p *parser) simulation(raw *Simulation) *Simulation {
	if raw != nil {
		p.absolute("simulation.topology", raw.Topology)
		p.absolute("simulation.dir", raw.Dir)
		if raw.DCMI != "" {
			p.absolute("simulation.dcmi", raw.DCMI)
		}
	}
	return raw
}

func (p *parser) rule(key string, raw rawRule, fallback Sharing) Rule {
	r := Rule{selector: p.selector(key, raw)}
	r.Sharing = p.sharing(key, raw.rawSharing, fallback)
	if len(raw.Profiles) > 0 && !r.Sharing.Mode.InParts() {
		p.fail("%sprofiles is for modes \"mig\" and \"partition\", the mode is %q", key, r.Sharing.Mode)
	}
	if len(raw.MIG) > 0 && !r.Sharing.Mode.InParts() {
		p.fail("%smig is for modes \"mig\" and \"partition\", the mode is %q", key, r.Sharing.Mode)
	}
	for i, name := range raw.Profiles {
		p.profile(fmt.Sprintf("%sprofiles[%d]", key, i), name)
	}
	r.Profiles = raw.Profiles
	r.Demand = p.demand(key, raw, r)
	for i, m := range raw.MIG {
		r.instances = append(r.instances, p.migRule(fmt.Sprintf("%smig[%d].", key, i), m, r.Sharing))
	}
	return r
}

// layoutDemand is the layout of a GPU that follows demand.
const layoutDemand = "demand"

func (p *parser) demand(key string, raw rawRule, r Rule) *Demand {
	layout := "declared"
	if raw.Layout != nil {
		layout = p.oneOf(key+"layout", *raw.Layout, "declared", layoutDemand)
	}
	if layout != layoutDemand {
		if raw.Demand != nil {
			p.fail("%sdemand is for layout = %q, the layout is %q", key, layoutDemand, layout)
		}
		return nil
	}
	if r.Sharing.Mode != gpu.ModeMIG {
		p.fail("%slayout %q is for mode \"mig\", the mode is %q", key, layout, r.Sharing.Mode)
	}
	d := &Demand{AtOnce: 1, PerDay: 24}
	if raw.Demand == nil {
		return d
	}
	atOnce, perDay := int64(d.AtOnce), int64(d.PerDay)
	p.number(key+"demand.at_once", &raw.Demand.AtOnce, &atOnce, 1, 64)
	p.number(key+"demand.per_day", &raw.Demand.PerDay, &perDay, 1, 1000)
	d.AtOnce, d.PerDay, d.Least = int(atOnce), int(perDay), raw.Demand.Least
	for i, name := range d.Least {
		p.profile(fmt.Sprintf("%sdemand.least[%d]", key, i), name)
		if !r.Allows(name) {
			p.fail("%sdemand.least[%d] %q is not one of profiles", key, i, name)
		}
	}
	return d
}

// profileName is how NVIDIA names MIG profiles: "1g.10gb", "1g.10gb+me"; modeName is how
// AMD's partition modes are written here: "cpx", "cpx-nps4"; vnpuName is how Huawei names
// templates of vNPUs: "vir10_3c_32g".
var (
	profileName = regexp.MustCompile(`^[1-8]g\.[1-9][0-9]{0,2}gb([+-][a-z.,]+)?$`)
	modeName    = regexp.MustCompile(`^[sdtqc]px(-nps[1248])?$`)
	vnpuName    = regexp.MustCompile(`^vir[0-9]{2}(_[0-9]{1,2}c)?(_[0-9]{1,3}g)?(_[a-z]{1,5})?$`)
)

func (p *parser) profile(key, name string) {
	if !profileName.MatchString(name) && !modeName.MatchString(name) && !vnpuName.MatchString(name) {
		p.fail("%s %q is not a MIG profile; write one such as \"1g.10gb\", nvidia-smi mig -lgip lists them; of AMD's GPUs a partition mode, such as \"cpx-nps4\"; of Huawei's devices a vNPU template, such as \"vir10_3c_32g\"", key, name)
	}
}

func (p *parser) selector(key string, raw rawRule) selector {
	var s selector
	if raw.UUID != nil {
		if s.uuid = *raw.UUID; !strings.HasPrefix(s.uuid, "GPU-") && !strings.HasPrefix(s.uuid, "NPU-") {
			p.fail("%suuid %q is not a GPU's UUID; nomad-device-gpu inventory lists them", key, s.uuid)
		}
	}
	if raw.Index != nil {
		n := int(*raw.Index)
		if s.index = &n; n < 0 {
			p.fail("%sindex %d is negative; write the position from 0 in order of PCI address", key, n)
		}
	}
	if raw.PCI != nil {
		if s.pci = normalPCI(*raw.PCI); s.pci == "" {
			p.fail("%spci %q is not a PCI address; write one such as \"0000:3b:00.0\"", key, *raw.PCI)
		}
	}
	if raw.Vendor != nil {
		s.vendor = p.oneOf(key+"vendor", *raw.Vendor, slices.Sorted(maps.Keys(Vendors))...)
	}
	if raw.Model != nil {
		s.model = *raw.Model
		if _, err := path.Match(s.model, ""); err != nil || s.model == "" {
			p.fail("%smodel %q is not a pattern; write a type such as \"H100\" or a pattern such as \"*A100*\"", key, s.model)
		}
	}
	return s
}

var pciAddress = regexp.MustCompile(`^([0-9a-f]{4}|0000[0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$`)

// normalPCI spells an address as sysfs does, or returns "" if it is none.
func normalPCI(s string) string {
	m := pciAddress.FindStringSubmatch(strings.ToLower(s))
	if m == nil {
		return ""
	}
	return m[1][len(m[1])-4:] + ":" + m[2]
}

func (p *parser) migRule(key string, raw rawMIG, parent Sharing) migRule {
	r := migRule{profile: "*"}
	if raw.Profile != nil {
		r.profile = *raw.Profile
		if _, err := path.Match(r.profile, ""); err != nil || r.profile == "" {
			p.fail("%sprofile %q is not a pattern; write a profile such as \"3g.40gb\"", key, r.profile)
		}
	}
	parent.Mode, parent.Mechanism = gpu.ModeWhole, gpu.SharingNone
	r.sharing = p.sharing(key, raw.rawSharing, parent)
	if r.sharing.Mode.InParts() {
		p.fail("%smode %q is for GPUs; an instance's is whole, slice or shared", key, r.sharing.Mode)
	}
	return r
}

func (p *parser) needHAMi(c *Config) {
	offers := []Sharing{c.Fallback}
	for _, r := range c.Rules {
		offers = append(offers, r.Sharing)
		for _, m := range r.instances {
			offers = append(offers, m.sharing)
		}
	}
	for _, o := range offers {
		if o.Mechanism == gpu.SharingHAMi && c.HAMi == nil {
			p.fail("sharing \"hami\" needs the block hami { library = \"/path/libvgpu.so\" }")
			return
		}
	}
}

// RuleFor is the first rule that selects a GPU, or the one made of the defaults.
func (c *Config) RuleFor(g hardware.GPU, index int) Rule {
	for _, r := range c.Rules {
		if r.Selects(g, index) {
			r.vendor, r.Sharing = g.Vendor, r.Sharing.fit(g.Vendor)
			return r
		}
	}
	return Rule{vendor: g.Vendor, Sharing: c.Fallback.fit(g.Vendor)}
}

// FollowsDemand reports whether the layout of any GPU follows demand.
func (c *Config) FollowsDemand() bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool { return r.Demand != nil })
}
