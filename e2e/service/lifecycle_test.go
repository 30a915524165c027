// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

const oneGPU = `
queue "q" {
  gpus       = 1
  borrow     = false
  namespaces = ["default"]
}
`

// TestLifecycle does through the service what people do with a job after they
// have submitted it, and looks at what that restarts.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, oneGPU)
	svc := job{id: "svc", meta: map[string]string{"gpu": "3G"}}
	admitted(ctx, t, r, svc)
	first := runs(ctx, t, c.API, "svc", 1)[0].ID
	kept := func(what string, live []*api.AllocationListStub) {
		t.Helper()
		if !slices.ContainsFunc(live, func(a *api.AllocationListStub) bool { return a.ID == first }) {
			t.Errorf("%s replaced alloc %s", what, first)
		}
	}

	two, six := 2, 6
	until(ctx, t, "scale when the deployment is over", 3*time.Minute, func() (bool, string) {
		_, _, err := r.API.Jobs().Scale("svc", "g", &two, "", false, nil, nil)
		return err == nil, fmt.Sprint(err)
	})
	kept("scaling", runs(ctx, t, c.API, "svc", 2))
	until(ctx, t, "be refused what is beyond the quota, when the deployment is over", 3*time.Minute, func() (bool, string) {
		_, _, err := r.API.Jobs().Scale("svc", "g", &six, "", false, nil, nil)
		return err != nil && strings.Contains(err.Error(), "over the quota"), fmt.Sprint(err)
	})

	j, _, err := c.API.Jobs().Info("svc", nil)
	if err != nil {
		t.Fatal(err)
	}
	svc.count = 2
	if _, _, err := r.API.Jobs().EnforceRegister(svc.api(), *j.JobModifyIndex+1, nil); err == nil || !strings.Contains(err.Error(), "Enforcing job modify index") {
		t.Errorf("a wrong index: %v", err)
	}
	if _, _, err := r.API.Jobs().EnforceRegister(svc.api(), *j.JobModifyIndex, nil); err != nil {
		t.Errorf("the right index: %v", err)
	}
	kept("the same job again", runs(ctx, t, c.API, "svc", 2))
	before, _, err := c.API.Jobs().Info("svc", nil)
	if err != nil {
		t.Fatal(err)
	}
	if *before.Version != *j.Version {
		t.Errorf("the same job again became version %d of what was %d", *before.Version, *j.Version)
	}

	changed := svc.api()
	changed.TaskGroups[0].Tasks[0].Env = map[string]string{"CHANGED": "1"}
	if _, _, err := r.API.Jobs().Register(changed, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.API.Jobs().Revert("svc", *before.Version, nil, nil, "", ""); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "svc", 2)
	after, _, err := c.API.Jobs().Info("svc", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := after.TaskGroups[0].Tasks[0].Resources.Devices, before.TaskGroups[0].Tasks[0].Resources.Devices; len(got) != 1 || got[0].Name != want[0].Name || *got[0].Count != *want[0].Count || !strings.Contains(constraints(after), "nomad-gpu") {
		t.Errorf("reverted it has %+v and %q", got, constraints(after))
	}

	par := job{id: "par", kind: "batch", meta: map[string]string{"gpu": "2G"}}.api()
	par.ParameterizedJob = &api.ParameterizedJobConfig{}
	if _, _, err := r.API.Jobs().Register(par, nil); err != nil {
		t.Fatal(err)
	}
	child, _, err := r.API.Jobs().Dispatch("par", nil, nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, group := held(ctx, t, c, runs(ctx, t, c.API, child.DispatchedJobID, 1)[0]); !strings.HasPrefix(group, "nvidia/slice/T4/") {
		t.Errorf("the dispatched job holds %s", group)
	}

	often := job{id: "often", kind: "batch", meta: map[string]string{"gpu": "2G"}}.api()
	never, cron := "0 0 1 1 *", api.PeriodicSpecCron
	often.Periodic = &api.PeriodicConfig{Spec: &never, SpecType: &cron}
	if _, _, err := r.API.Jobs().Register(often, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.API.Jobs().PeriodicForce("often", nil); err != nil {
		t.Fatal(err)
	}
	list, _, err := c.API.Jobs().PrefixList("often/periodic-")
	if err != nil || len(list) != 1 {
		t.Fatalf("%d periodic children, %v", len(list), err)
	}
	runs(ctx, t, c.API, list[0].ID, 1)

	// 3 + 3 + 2 + 2 of 14: a dispatch of five more waits.
	big := job{id: "big", kind: "batch", meta: map[string]string{"gpu": "5G"}}.api()
	big.ParameterizedJob = &api.ParameterizedJobConfig{}
	if _, _, err := r.API.Jobs().Register(big, nil); err != nil {
		t.Fatal(err)
	}
	waits, _, err := r.API.Jobs().Dispatch("big", nil, nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "say what it waits for", time.Minute, func() (bool, string) {
		_, said, _ := scheduler(ctx, t, t.TempDir(), r.URL, "explain", waits.DispatchedJobID)
		return strings.Contains(said, "quota"), said
	})
	doubleBooked(ctx, t, c.API)
}
