// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// No driver makes a namespace for tasks of other drivers than ours before they start.
// Theirs is made when their first program comes to the gate, which has it wait meanwhile:
//
//	gate ──► asks/<group> ──► keeper: whose is the group? ──► namespace, place ──► gate
//
// A tenant is such a task: the control group that its driver gave it, and its share.

// Tenant is a task of another driver on a device.
type Tenant struct {
	// Group is the task's control group: its programs are in it or below.
	Group  string
	Limits mpsctl.Limits
}

// TenantFinder finds out which task of another driver a process on a device is of, by its
// control group. Percentages are of the device's multiprocessors.
type TenantFinder func(uuid string, pid int, group string, multiprocessors int) (Tenant, error)

// placeTenants answers the questions of gates.
func (k *keeper) placeTenants(ctx context.Context) {
	n, ok := k.speaks.(namespaced)
	if !ok {
		return
	}
	entries, err := os.ReadDir(asksDir(n.dirs.own))
	if err != nil {
		return // there are none
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue // it is not written yet
		}
		path := filepath.Join(asksDir(n.dirs.own), e.Name())
		var a ask
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &a)
		}
		if err == nil {
			err = k.placeTenant(ctx, n, a)
		}
		_ = os.Remove(path)
		if err != nil {
			k.log.Warn("a program of another driver's task gets no MPS namespace", "device", k.control.uuid, "pid", a.PID, "control_group", a.Group, "error", err)
		}
	}
}

func (k *keeper) placeTenant(ctx context.Context, n namespaced, a ask) error {
	if k.tenant == nil {
		return errors.New("tasks of other drivers are not known")
	}
	t, err := k.tenant(k.control.uuid, a.PID, a.Group, k.Status().Multiprocessors)
	if err != nil {
		return err
	}
	if groups, err := cgroup.Of(a.PID); err != nil || !cgroup.Within(groups, t.Group) {
		return fmt.Errorf("process %d is not in control group %s any more", a.PID, t.Group)
	}
	name := gpu.MPSTenantNamespace(t.Group)
	if err := n.v3().Open(ctx, gpu.MPSServer, name, t.Limits); err != nil {
		return err
	}
	return mpsctl.PlacesOf(n.dirs.own).Put(name, t.Group)
}

// keepNamespaces removes the namespaces of tasks that are gone. Leases that were read
// before a namespace was seen say nothing about it.
func (k *keeper) keepNamespaces(ctx context.Context) error {
	n, ok := k.speaks.(namespaced)
	if !ok {
		return nil
	}
	names, err := n.v3().Namespaces(ctx, gpu.MPSServer)
	if err != nil {
		return err
	}
	places, err := mpsctl.PlacesOf(n.dirs.own).All()
	if err != nil {
		return err
	}
	for name := range places {
		if !slices.Contains(names, name) { // no program is to come where nothing holds it
			if err := mpsctl.PlacesOf(n.dirs.own).Remove(name); err != nil {
				return err
			}
		}
	}
	running := sync.OnceValue(runningGroups)
	spec, seen := k.wanted(), map[string]time.Time{}
	var gone []string
	for _, name := range names {
		if seen[name] = k.seen[name]; seen[name].IsZero() {
			seen[name] = k.now()
		}
		foreign := gpu.IsMPSTenantNamespace(name)
		switch {
		case foreign && !slices.ContainsFunc(running(), func(g cgroup.Group) bool { return cgroup.Within([]cgroup.Group{g}, places[name]) }),
			!foreign && spec.MembersAt.After(seen[name]) && !slices.Contains(spec.Members, name):
			gone = append(gone, name)
		}
	}
	k.seen = seen
	n.sweep(ctx, gone)
	return nil
}

// runningGroups are the control groups of all processes.
func runningGroups() (all []cgroup.Group) {
	pids, err := procs.PIDs()
	if err != nil {
		return nil
	}
	for _, pid := range pids {
		groups, _ := cgroup.Of(pid)
		all = append(all, groups...)
	}
	return all
}
