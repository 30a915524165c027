package device

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// config is the plugin's configuration, checked.
type config struct {
	enabled         bool
	ignored         map[string]bool
	period          time.Duration
	stateDir        string
	dataDir         string
	hashicorpMIG    bool
	modeChangeDelay time.Duration
	nvidiaSMI       string
	cdiHook         string // empty: the plugin itself
	driver          driver
	rules           []rule
	fallback        sharingConfig
	mps             rawMPS
	shmMiB          int64
	hami            *gpu.HAMiState
	seats           *gpu.SeatRules // nil without a suspend block
	health          healthConfig
	metrics         string
	dcgmNames       bool
	simulation      *rawSimulation
	vendors         map[string]bool
	memoryLimits    bool
}

type healthConfig struct {
	interval, timeout, measure time.Duration
	ignore                     map[string]bool
	// applicationXIDs are the faults of programs, fatalXIDs those of GPUs, beside those
	// that are known.
	applicationXIDs, fatalXIDs []uint64
}

// driver says where NVIDIA's driver was installed to.
type driver struct {
	// Root is the root of the file system that it was installed into, DevRoot has the
	// device nodes; empty is Root, or "/" where that has none.
	Root, DevRoot string
	// LibraryPaths are more directories to look for its libraries in.
	LibraryPaths []string
}

// parseConfig checks a configuration. Its error holds every mistake, each with
// the key, the value and what is valid.
func parseConfig(raw rawConfig) (*config, error) {
	p := &configParser{}
	c := &config{
		enabled:         raw.Enabled,
		ignored:         map[string]bool{},
		period:          p.duration("fingerprint_period", raw.FingerprintPeriod, time.Second),
		stateDir:        p.stateDir(raw.StateDir),
		dataDir:         p.absolute("data_dir", raw.DataDir),
		hashicorpMIG:    p.oneOf("mig_names", raw.MIGNames, "profile", "hashicorp") == "hashicorp",
		modeChangeDelay: p.duration("mode_change_delay", raw.ModeChangeDelay, 0),
		nvidiaSMI:       raw.NvidiaSMI,
		cdiHook:         p.path("cdi_hook", raw.CDIHook),
		driver:          p.driver(raw),
		mps:             p.mps(raw.MPS),
		hami:            p.hami(raw.HAMi),
		seats:           p.suspend(raw.Suspend),
		health:          p.health(raw.Health),
		metrics:         p.metrics(raw.Metrics),
		simulation:      p.simulation(raw.Simulation),
	}
	c.vendors = p.vendors(raw.Vendors)
	c.memoryLimits = raw.MemoryLimits
	c.dcgmNames = raw.Metrics != nil && raw.Metrics.DCGM
	c.shmMiB = p.shmSize(c.mps.ShmSize)
	for _, id := range raw.IgnoredGPUIDs {
		c.ignored[id] = true
	}
	c.fallback = p.sharing("", raw.rawSharing, sharingConfig{})
	for i, r := range raw.GPUs {
		c.rules = append(c.rules, p.rule(fmt.Sprintf("gpu[%d].", i), r, c.fallback))
	}
	p.needHAMi(c)
	p.checkSuspend(c)
	return c, errors.Join(p.problems...)
}

// configParser collects mistakes.
type configParser struct{ problems []error }

func (p *configParser) fail(format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf(format, args...))
}

func (p *configParser) duration(key, value string, least time.Duration) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < least {
		p.fail("%s %q is not a duration of at least %s; write one such as \"30s\" or \"5m\"", key, value, least)
	}
	return d
}

func (p *configParser) absolute(key, value string) string {
	if !filepath.IsAbs(value) {
		p.fail("%s %q is not an absolute path", key, value)
	}
	return filepath.Clean(value)
}

func (p *configParser) stateDir(value string) string {
	dir := p.absolute("state_dir", value)
	if err := mps.CheckStateDir(dir); err != nil {
		p.problems = append(p.problems, err)
	}
	return dir
}

// vendors are those whose devices are looked for; none means all.
func (p *configParser) vendors(names []string) map[string]bool {
	wanted, known := map[string]bool{}, slices.Sorted(maps.Keys(vendors))
	for i, name := range names {
		wanted[p.oneOf(fmt.Sprintf("vendors[%d]", i), name, known...)] = true
	}
	for _, name := range known {
		wanted[name] = wanted[name] || len(names) == 0
	}
	return wanted
}

// path is an absolute path, or nothing.
func (p *configParser) path(key, value string) string {
	if value == "" {
		return ""
	}
	return p.absolute(key, value)
}

func (p *configParser) driver(raw rawConfig) driver {
	d := driver{Root: p.absolute("driver_root", raw.DriverRoot), DevRoot: p.path("dev_root", raw.DevRoot)}
	for i, dir := range raw.LibraryPath {
		d.LibraryPaths = append(d.LibraryPaths, p.absolute(fmt.Sprintf("library_path[%d]", i), dir))
	}
	return d
}

func (p *configParser) oneOf(key, value string, valid ...string) string {
	for _, v := range valid {
		if value == v {
			return v
		}
	}
	p.fail("%s %q is not one of %s", key, value, strings.Join(valid, ", "))
	return ""
}

func (p *configParser) mps(raw *rawMPS) rawMPS {
	if raw == nil {
		raw = &rawMPS{Control: "nvidia-cuda-mps-control", MultiUser: true, ShmSize: "1GiB"}
	}
	if raw.Control == "" {
		p.fail("mps.control is empty; write the path or the name of nvidia-cuda-mps-control")
	}
	if raw.MaxClients < 0 || raw.MaxClients > mps.MostClients {
		p.fail("mps.max_clients %d is not valid (from 1 to %d, which an MPS server takes with CUDA 13.1 and later, or 0 for the limit of the GPU and CUDA version)", raw.MaxClients, mps.MostClients)
	}
	return *raw
}

func (p *configParser) shmSize(value string) int64 {
	mib, err := gpu.ParseMemory(value)
	if err != nil || mib < 1 {
		p.fail("mps.shm_size %q is not a size of at least 1 MiB; write one such as \"1GiB\"", value)
	}
	return mib
}

func (p *configParser) hami(raw *rawHAMi) *gpu.HAMiState {
	if raw == nil {
		return nil
	}
	return &gpu.HAMiState{Library: p.absolute("hami.library", raw.Library), LockDir: p.absolute("hami.lock_dir", raw.LockDir)}
}

func (p *configParser) health(raw *rawHealth) healthConfig {
	if raw == nil {
		raw = &rawHealth{Interval: "5s", Timeout: "5s", Measure: "2s"}
	}
	c := healthConfig{
		interval:        p.duration("health.interval", raw.Interval, 100*time.Millisecond),
		timeout:         p.duration("health.timeout", raw.Timeout, 100*time.Millisecond),
		measure:         p.duration("health.measure", raw.Measure, 100*time.Millisecond),
		ignore:          map[string]bool{},
		applicationXIDs: raw.ApplicationXIDs, fatalXIDs: raw.FatalXIDs,
	}
	for _, code := range raw.Ignore {
		c.ignore[code] = true
	}
	for _, n := range c.fatalXIDs {
		if slices.Contains(c.applicationXIDs, n) {
			p.fail("health: XID %d is both in application_xids and in fatal_xids", n)
			break
		}
	}
	return c
}

func (p *configParser) metrics(raw *rawMetrics) string {
	if raw == nil {
		return ""
	}
	if _, _, err := net.SplitHostPort(raw.Address); err != nil {
		p.fail("metrics.address %q is not host:port, such as 127.0.0.1:9836", raw.Address)
	}
	return raw.Address
}

func (p *configParser) simulation(raw *rawSimulation) *rawSimulation {
	if raw != nil {
		p.absolute("simulation.topology", raw.Topology)
		p.absolute("simulation.dir", raw.Dir)
		if raw.DCMI != "" {
			p.absolute("simulation.dcmi", raw.DCMI)
		}
	}
	return raw
}

func (p *configParser) rule(key string, raw rawRule, fallback sharingConfig) rule {
	r := rule{selector: p.selector(key, raw)}
	r.sharing = p.sharing(key, raw.rawSharing, fallback)
	if len(raw.Profiles) > 0 && !r.sharing.Mode.InParts() {
		p.fail("%sprofiles is for modes \"mig\" and \"partition\", the mode is %q", key, r.sharing.Mode)
	}
	if len(raw.MIG) > 0 && !r.sharing.Mode.InParts() {
		p.fail("%smig is for modes \"mig\" and \"partition\", the mode is %q", key, r.sharing.Mode)
	}
	for i, name := range raw.Profiles {
		p.profile(fmt.Sprintf("%sprofiles[%d]", key, i), name)
	}
	r.profiles = raw.Profiles
	for i, m := range raw.MIG {
		r.instances = append(r.instances, p.migRule(fmt.Sprintf("%smig[%d].", key, i), m, r.sharing))
	}
	return r
}

// profileName is how NVIDIA names MIG profiles: "1g.10gb", "1g.10gb+me"; modeName is how
// AMD's partition modes are written here: "cpx", "cpx-nps4"; vnpuName is how Huawei names
// templates of vNPUs: "vir10_3c_32g".
var (
	profileName = regexp.MustCompile(`^[1-8]g\.[1-9][0-9]{0,2}gb([+-][a-z.,]+)?$`)
	modeName    = regexp.MustCompile(`^[sdtqc]px(-nps[1248])?$`)
	vnpuName    = regexp.MustCompile(`^vir[0-9]{2}(_[0-9]{1,2}c)?(_[0-9]{1,3}g)?(_[a-z]{1,5})?$`)
)

func (p *configParser) profile(key, name string) {
	if !profileName.MatchString(name) && !modeName.MatchString(name) && !vnpuName.MatchString(name) {
		p.fail("%s %q is not a MIG profile; write one such as \"1g.10gb\", nvidia-smi mig -lgip lists them; of AMD's GPUs a partition mode, such as \"cpx-nps4\"; of Huawei's devices a vNPU template, such as \"vir10_3c_32g\"", key, name)
	}
}

func (p *configParser) selector(key string, raw rawRule) selector {
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
		s.vendor = p.oneOf(key+"vendor", *raw.Vendor, slices.Sorted(maps.Keys(vendors))...)
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

func (p *configParser) migRule(key string, raw rawMIG, parent sharingConfig) migRule {
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

func (p *configParser) needHAMi(c *config) {
	offers := []sharingConfig{c.fallback}
	for _, r := range c.rules {
		offers = append(offers, r.sharing)
		for _, m := range r.instances {
			offers = append(offers, m.sharing)
		}
	}
	for _, o := range offers {
		if o.Mechanism == gpu.SharingHAMi && c.hami == nil {
			p.fail("sharing \"hami\" needs the block hami { library = \"/path/libvgpu.so\" }")
			return
		}
	}
}
