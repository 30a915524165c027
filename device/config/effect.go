// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"regexp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// use is what the modes and mechanisms that a configuration chooses make use of.
type use struct{ slices, replicas, timeslice, compute, mps, hami, suspend bool }

func (u *use) add(o Sharing) {
	u.slices = u.slices || o.Mode == gpu.ModeSlice
	u.replicas = u.replicas || o.Mode == gpu.ModeShared
	u.timeslice = u.timeslice || o.Mechanism == gpu.SharingTimeslice
	u.compute = u.compute || o.Mode == gpu.ModeSlice || o.Mode == gpu.ModeShared
	u.mps = u.mps || o.Mechanism == gpu.SharingMPS
	u.hami = u.hami || o.Mechanism == gpu.SharingHAMi
	u.suspend = u.suspend || o.Mechanism == gpu.SharingSuspend
}

// idle warns of settings that the configuration itself leaves without effect.
func idle(raw rawConfig, c *Config) (warnings []string) {
	var all use
	all.add(c.Fallback)
	for i, r := range c.Rules {
		var of use
		of.add(r.Sharing)
		for n, m := range r.instances {
			var own use
			own.add(m.sharing)
			warnings = append(warnings, own.unused(fmt.Sprintf("gpu[%d].mig[%d].", i, n), raw.GPUs[i].MIG[n].rawSharing)...)
			of.add(m.sharing)
		}
		warnings = append(warnings, of.unused(fmt.Sprintf("gpu[%d].", i), raw.GPUs[i].rawSharing)...)
		all.add(r.Sharing)
		for _, m := range r.instances {
			all.add(m.sharing)
		}
	}
	warnings = append(warnings, all.unused("", raw.rawSharing.written())...)
	for _, block := range []struct {
		name          string
		written, used bool
		why           string
	}{
		{"mps", raw.MPS != nil, all.mps, "shares GPUs through MPS"},
		{"hami", raw.HAMi != nil, all.hami, "has sharing \"hami\""},
		{"suspend", raw.Suspend != nil, all.suspend, "has sharing \"suspend\""},
	} {
		if block.written && !block.used {
			warnings = append(warnings, fmt.Sprintf("%s { } has no effect: nothing here %s", block.name, block.why))
		}
	}
	if raw.Health != nil {
		for i, code := range raw.Health.Ignore {
			if !faultCodes[code] && !numberedFaults.MatchString(code) {
				warnings = append(warnings, fmt.Sprintf("health.ignore[%d] has no effect: no fault has the code %q (such as xid-63 or ecc-remap-pending)", i, code))
			}
		}
	}
	return warnings
}

// written leaves out values that may be the defaults of the schema.
func (r rawSharing) written() rawSharing {
	return rawSharing{
		SliceMemory: unless(r.SliceMemory, defaultSliceMemory), Headroom: unless(r.Headroom, defaultHeadroom), Replicas: unless(r.Replicas, defaultReplicas),
		Timeslice: unless(r.Timeslice, timeslices[0]), ComputeBurst: unless(r.ComputeBurst, gpu.MilliPerGPU),
	}
}

func unless[T comparable](value *T, ordinary T) *T {
	if value != nil && *value == ordinary {
		return nil
	}
	return value
}

// unused warns of keys of one block that its mode does not use.
func (u use) unused(key string, raw rawSharing) (warnings []string) {
	for _, k := range []struct {
		name          string
		written, used bool
		wants         string
	}{
		{"slice_memory", raw.SliceMemory != nil, u.slices, `mode "slice"`},
		{"headroom", raw.Headroom != nil, u.slices, `mode "slice"`},
		{"replicas", raw.Replicas != nil, u.replicas, `mode "shared"`},
		{"timeslice", raw.Timeslice != nil, u.timeslice, `sharing "timeslice"`},
		{"compute_burst", raw.ComputeBurst != nil, u.compute, `mode "slice" or "shared"`},
	} {
		if k.written && !k.used {
			warnings = append(warnings, fmt.Sprintf("%s%s has no effect without %s", key, k.name, k.wants))
		}
	}
	return warnings
}

// faultCodes are the codes of faults, but for those with a number in them.
var faultCodes = map[string]bool{
	"amdgpu-absent": true, "amdgpu-timeout": true, "cdi-not-ready": true, "compute-mode": true, "compute-mode-not-set": true,
	"dcmi-absent": true, "dcmi-error": true, "dcmi-timeout": true, "driver-mismatch": true, "ecc-remap-failed": true, "ecc-remap-pending": true,
	"ecc-retirement-pending": true, "ecc-uncorrected": true, "fabric-failed": true, "fabric-not-ready": true, "fatal-errors": true, "gpu-lost": true,
	"gpu-missing": true, "hami-not-ready": true, "intel-absent": true, "intel-timeout": true, "mig-layout-failed": true, "mps-fault": true,
	"mps-not-ready": true, "npu-health": true, "npu-not-started": true, "nvml-absent": true, "nvml-error": true, "nvml-timeout": true,
	"page-retirement-failed": true, "page-retirement-pending": true, "partition-lost": true, "pcie-fatal": true, "reset-required": true,
	"sharing-impossible": true, "survivability-mode": true, "timeslice-not-set": true, "vnpu-lost": true,
}

// numberedFaults are families of codes.
var numberedFaults = regexp.MustCompile(`^(xid-[0-9]+|npu-[0-9a-f]{8}|(event|recovery|ras)-[a-z0-9-]+)$`)
