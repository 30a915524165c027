// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// operatorKinds are the kinds of the specs that operators make with their vendor's
// tools.
var operatorKinds = map[string]string{"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "intel.com/gpu", "huawei": "huawei.com/npu"}

// cdiSpecs find, and where need be make, the CDI names of one vendor's devices, and
// see to it that the named files are there.
type cdiSpecs struct {
	vendor string
	source fleet.CDISource
	// operatorDirs are where the operator's specs lie, ourDir where ours go.
	operatorDirs []string
	ourDir       string

	mu sync.Mutex
	// generated is our spec as it was written last, failed are the devices that
	// it could not describe.
	generated *specs.Spec
	failed    map[string]error
	// well is true while nothing is wrong with it; breaks counts how often that
	// ended.
	well   bool
	breaks int
}

// newCDISpecs has those of every vendor.
func newCDISpecs(p *fleet.Platform, dir string) []*cdiSpecs {
	var all []*cdiSpecs
	for _, vendor := range slices.Sorted(maps.Keys(p.CDI)) {
		all = append(all, &cdiSpecs{vendor: vendor, source: p.CDI[vendor], operatorDirs: p.OperatorCDI, ourDir: dir})
	}
	return all
}

// kind is that of the specs that the plugin generates. It differs from the
// operator's because two specs with one name cancel each other.
func (c *cdiSpecs) kind() string { return "nomad-gpu/" + c.vendor }

// path is where the generated spec lies.
func (c *cdiSpecs) path() string { return filepath.Join(c.ourDir, "nomad-gpu-"+c.vendor+".json") }

// cdiName is how a container runtime gets a device, or why it cannot.
type cdiName struct {
	name string
	err  error
	// operators says that the spec is the operator's, and so not ours to repair.
	operators bool
}

// resolve returns the CDI name of each device; one that has none yet is left out.
// The operator's spec comes first.
func (c *cdiSpecs) resolve(uuids []string) map[string]cdiName {
	names := map[string]cdiName{}
	operators := c.operatorSpecs()
	c.mu.Lock()
	defer c.mu.Unlock()
	broken := false
	for _, uuid := range uuids {
		switch {
		case operators[uuid] != nil:
			d := operators[uuid]
			names[uuid] = cdiName{d.GetQualifiedName(), c.source.CheckCDI(d.GetSpec().Spec, []string{d.Name}), true}
		case c.describes(uuid):
			names[uuid] = cdiName{name: c.kind() + "=" + uuid, err: c.check(uuid)}
			broken = broken || names[uuid].err != nil
		case c.failed[uuid] != nil:
			names[uuid] = cdiName{err: c.failed[uuid]}
		}
	}
	if broken && c.well {
		c.breaks++
	}
	c.well = c.generated != nil && !broken
	return names
}

// describes reports whether our spec has a device.
func (c *cdiSpecs) describes(uuid string) bool {
	return c.generated != nil && slices.ContainsFunc(c.generated.Devices, func(d specs.Device) bool { return d.Name == uuid })
}

// check reports faults of our spec, for one device.
func (c *cdiSpecs) check(uuid string) error {
	if _, err := os.Stat(c.path()); err != nil {
		return errors.New("the generated CDI spec is gone")
	}
	return c.source.CheckCDI(c.generated, []string{uuid})
}

// operatorSpecs are the operator's CDI devices by the UUIDs of their GPUs.
func (c *cdiSpecs) operatorSpecs() map[string]*cdi.Device {
	found := map[string]*cdi.Device{}
	if len(c.operatorDirs) == 0 {
		return found
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(c.operatorDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return found
	}
	for _, qualified := range cache.ListDevices() {
		d := cache.GetDevice(qualified)
		if d == nil || d.GetSpec().Kind != operatorKinds[c.vendor] {
			continue
		}
		if uuid := c.source.Stands(*d.Device); uuid != "" && found[uuid] == nil {
			found[uuid] = d
		}
	}
	return found
}

// generate makes our spec of the given devices. It asks the driver and reads its
// libraries, which can take long. A device that cannot be described leaves the
// others theirs; only a spec that serves none is an error.
func (c *cdiSpecs) generate(uuids []string) error {
	spec, failed, err := c.source.CDISpec(c.kind(), uuids)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.generated, c.failed = nil, failed
		return fmt.Errorf("generate CDI spec: %w", err)
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("encode CDI spec: %w", err)
	}
	if err := statedir.WriteFile(c.path(), text, 0o644); err != nil {
		return err
	}
	c.generated, c.failed = spec, failed
	return c.source.CheckCDI(spec, nil)
}

// input is what a spec is made for: the devices, and how often one broke. What
// could not be made is tried again after a while; what breaks later is repaired
// at once.
func (c *cdiSpecs) input(uuids []string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d %s", c.breaks, strings.Join(uuids, " "))
}

// prepareCDI gives the units the names by which container runtimes know them. Without one,
// or with one that names missing files, no container of our driver can start: that is a
// fault where the driver is.
func (p *Preparer) prepareCDI(units []*plan.Unit) {
	for _, c := range p.cdi {
		p.prepareCDIOf(c, slices.DeleteFunc(slices.Clone(units), func(u *plan.Unit) bool { return u.GPU.Vendor != c.vendor }))
	}
}

func (p *Preparer) prepareCDIOf(c *cdiSpecs, units []*plan.Unit) {
	var uuids []string
	for _, u := range units {
		if u.Offered() && !u.Gone {
			uuids = append(uuids, u.UUID)
		}
	}
	names := c.resolve(uuids)
	broken := slices.ContainsFunc(uuids, func(uuid string) bool {
		n, known := names[uuid]
		return !known || n.err != nil && !n.operators
	})
	var failure error
	if broken {
		_, failure = p.background.do("cdi of "+c.vendor, c.input(uuids), retryInterval, func() error { return c.generate(uuids) })
		p.Report("cdi of "+c.vendor, failure)
	}
	needed := p.driverWasHere()
	for _, u := range units {
		n, known := names[u.UUID]
		u.CDI = n.name
		switch {
		case !slices.Contains(uuids, u.UUID):
		case !needed && (n.err != nil || failure != nil):
			u.CDI = ""
		case n.err != nil:
			action := "it is made again every minute; see the plugin's log"
			if n.operators {
				action = "make it anew with the vendor's tool, such as nvidia-ctk cdi generate, or remove it, and the plugin makes its own"
			}
			p.faults.add(u, gpu.Fault{Code: "cdi-not-ready", Message: "the CDI spec that gives containers the device is broken: " + n.err.Error(), Action: action})
		case !known && failure != nil:
			p.faults.add(u, gpu.Fault{Code: "cdi-not-ready", Message: "no CDI spec could be made: " + failure.Error(),
				Action: "it is tried again every minute; a spec of your own in /etc/cdi serves as well"})
		case !known:
			u.Unsettled = true
		}
	}
}

// driverWasHere reports whether the task driver has run since the machine booted. It alone
// needs CDI: docker, podman and raw_exec have ways of their own to a device. It refuses
// tasks without a CDI name, so nothing starts before the fault is told.
func (p *Preparer) driverWasHere() bool {
	_, err := p.State.DriverCounts()
	return !errors.Is(err, statedir.ErrNotFound)
}
