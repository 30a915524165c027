// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
)

// What a configuration file may have: MPS v3 Configuration File, 615 and 620.
// https://docs.nvidia.com/deploy/mps/620/mpsv3-configuration-file.html
var (
	serverKeys615    = []string{"allowed_devices", "pinned_memory_limit", "active_thread_percentage", "client_priority", "uid", "locality_domains", "namespaces", "devices"}
	namespaceKeys615 = []string{"pinned_memory_limit", "active_thread_percentage", "client_priority"}
	partitionKeys615 = []string{"name", "chunks", "include_remainder"}
	rootKeys615      = []string{"schema_version", "servers", "features"}
)

func (d *daemon3) with620(keys []string, more ...string) []string {
	if d.release < 620 {
		return keys
	}
	return append(slices.Clone(keys), more...)
}

// apply makes what a file names. It is read once, at the start.
func (d *daemon3) apply(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	root, err := parseTOML(string(text))
	if err != nil {
		return err
	}
	version, err := field[string](root, "", "schema_version")
	servers, err2 := field[table](root, "", "servers")
	features, err3 := field[table](root, "", "features")
	if err := errors.Join(err, err2, err3, root.only("configuration", d.with620(rootKeys615, "compute_policy")...)); err != nil {
		return err
	}
	if version != "1.0" {
		return fmt.Errorf("schema_version %q is not supported", version)
	}
	if err := features.only("features", "memacct", "context-share"); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		t, err := field[table](servers, "servers", name)
		if err == nil {
			err = d.applyServer(name, t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon3) applyServer(name string, t table) error {
	where := "servers." + name
	if err := t.only(where, d.with620(serverKeys615, "timeslice_pct")...); err != nil {
		return err
	}
	allowed, err1 := field[string](t, where, "allowed_devices")
	uid, err2 := field[int](t, where, "uid")
	domains, err3 := field[bool](t, where, "locality_domains")
	namespaces, err4 := field[table](t, where, "namespaces")
	devices, err5 := field[[]table](t, where, "devices")
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	s, err := d.createServer(name, uid, allowed)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := d.applyDevice(s, where+".devices", domains, device); err != nil {
			return err
		}
	}
	limits := table{}
	for _, key := range namespaceKeys615 {
		if v, found := t[key]; found {
			limits[key] = v
		}
	}
	if err := d.applyNamespace(s, where, "default", limits); err != nil {
		return err
	}
	for _, ns := range slices.Sorted(maps.Keys(namespaces)) {
		nt, err := field[table](namespaces, where, ns)
		if err == nil {
			err = d.applyNamespace(s, where+".namespaces."+ns, ns, nt)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon3) applyNamespace(s *server3, where, name string, t table) error {
	if err := t.only(where, d.with620(namespaceKeys615, "cgroup", "cgroup_depth", "devices")...); err != nil {
		return err
	}
	n := s.namespaces[name] // "default" refers to the built-in one
	if n == nil {
		var err error
		if n, err = d.createNamespace(s, name); err != nil {
			return err
		}
	}
	for _, key := range namespaceKeys615 {
		value, err := field[string](t, where, key)
		if err == nil && value != "" {
			err = n.set(key, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
	}
	var err, err2, err3 error
	var devices []table
	n.cgroup, err = field[string](t, where, "cgroup")
	n.depth, err2 = field[int](t, where, "cgroup_depth")
	devices, err3 = field[[]table](t, where, "devices")
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	for _, device := range devices {
		if err := device.only(where+".devices", "uuid", "sm_partition"); err != nil {
			return err
		}
		partition, err := field[string](device, where, "sm_partition")
		if err != nil {
			return err
		}
		if s.partitions[partition] == nil {
			return fmt.Errorf("%s: there is no partition %q", where, partition)
		}
		n.partition = partition
	}
	return nil
}

func (d *daemon3) applyDevice(s *server3, where string, domains bool, t table) error {
	uuid, err := field[string](t, where, "uuid")
	parts, err2 := field[[]table](t, where, "sm_partitions")
	if err := errors.Join(err, err2, t.only(where, "uuid", "sm_partitions")); err != nil {
		return err
	}
	for _, p := range parts {
		where := where + ".sm_partitions"
		name, err1 := field[string](p, where, "name")
		chunks, err2 := field[int](p, where, "chunks")
		shareable, err3 := field[bool](p, where, "shareable")
		most, err4 := field[int](p, where, "max_chunks")
		if err := errors.Join(err1, err2, err3, err4, p.only(where, d.with620(partitionKeys615, "shareable", "max_chunks")...)); err != nil {
			return err
		}
		if domains {
			return errors.New("locality domains and static SM partitions are mutually exclusive")
		}
		if _, err := d.createPartition(s, uuid, name, strconv.Itoa(chunks), shareable, most); err != nil {
			return err
		}
	}
	return nil
}
