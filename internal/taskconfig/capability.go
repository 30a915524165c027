// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
)

// DefaultCaps are the capabilities of a task that asks for none and of an
// operator's allow list that says nothing: Nomad's own list, which is Docker's
// without NET_RAW.
var DefaultCaps = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod",
	"net_bind_service", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}

// capName writes a capability as the kernel does: "net_raw" and "CAP_NET_RAW"
// become CAP_NET_RAW.
func capName(s string) string {
	return "CAP_" + strings.TrimPrefix(strings.ToUpper(s), "CAP_")
}

// Capabilities returns what the task runs with: the defaults, plus cap_add,
// minus cap_drop, all of it allowed by the operator.
func (c Config) Capabilities(policy Policy) ([]string, error) {
	var m Mistakes
	allowed, err := capSet(policy.AllowCaps, cap.Known())
	m.AddErr("allow_caps", err)
	add, err := capSet(c.CapAdd, slices.Collect(maps.Keys(allowed)))
	m.AddErr("cap_add", err)
	drop, err := capSet(c.CapDrop, cap.Known())
	m.AddErr("cap_drop", err)
	for _, name := range slices.Sorted(maps.Keys(add)) {
		if !allowed[name] {
			m.Add("cap_add", "%s is not allowed on this node; allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(allowed)), ", "))
		}
	}
	var have []string
	for _, name := range DefaultCaps {
		if name := capName(name); allowed[name] && !drop[name] {
			have = append(have, name)
		}
	}
	for name := range add {
		if !slices.Contains(have, name) {
			have = append(have, name)
		}
	}
	slices.Sort(have)
	return have, m.Err()
}

// capSet reads a list of names, in which "all" stands for every one of all.
func capSet(names, all []string) (map[string]bool, error) {
	set := map[string]bool{}
	for _, name := range names {
		if strings.EqualFold(name, "all") {
			for _, one := range all {
				set[one] = true
			}
			continue
		}
		if !slices.Contains(cap.Known(), capName(name)) {
			return nil, fmt.Errorf("unknown capability %q", name)
		}
		set[capName(name)] = true
	}
	return set, nil
}

// allowsCap reports whether a task can have a capability.
func (p Policy) allowsCap(name string) bool {
	allowed, err := capSet(p.AllowCaps, cap.Known())
	return err == nil && allowed[capName(name)]
}

// Check reports the mistakes in an operator's policy.
func (p Policy) Check() error {
	var m Mistakes
	_, err := capSet(p.AllowCaps, cap.Known())
	m.AddErr("allow_caps", err)
	for _, list := range []struct {
		key      string
		patterns []string
	}{{"allow_devices", p.AllowDevices}, {"allow_cdi_devices", p.AllowCDIDevices}} {
		for _, pattern := range list.patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				m.Add(list.key, "pattern %q: %v", pattern, err)
			}
		}
	}
	return m.Err()
}
