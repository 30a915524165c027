package decide_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Where Nomad chooses the GPU of an alloc, which knows of no compute, it holds the slices that go
// with its compute; that is recorded, and stays so.
func TestComputeIsCoveredWhereNomadChooses(t *testing.T) {
	for name, row := range map[string]struct {
		request string
		change  func(*admit.Ask)
		slices  int64
	}{
		"one alloc":         {"4G,0.5", func(*admit.Ask) {}, 4},
		"several":           {"4G,0.5", func(a *admit.Ask) { a.Count = 2 }, 8},
		"each node":         {"4G,0.5", func(a *admit.Ask) { a.JobType = "system" }, 8},
		"each node, once":   {"4G,0.5", func(a *admit.Ask) { a.JobType = "sysbatch" }, 8},
		"later":             {"4G,0.5", func(a *admit.Ask) { a.JobType, a.Later = "batch", true }, 8},
		"several of memory": {"4G", func(a *admit.Ask) { a.Count = 2 }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			a := servicetest.Ask("job", row.request, 1)
			row.change(&a)
			for range 2 { // the second time it is known
				d := s.Submit(t, a)
				if got := d.Tasks[0].Devices[0].Count; got != row.slices || recorded(s, a).Covered != (row.slices == 8) {
					t.Errorf("it holds %d slices, covered %v", got, recorded(s, a).Covered)
				}
				s.Register(a)
			}
		})
	}
}

// Memory alone is looked for in instances: a fraction is a part of a GPU, a number is whole GPUs,
// and the smallest that will do is taken.
func TestWhatIsLookedForInInstances(t *testing.T) {
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	n := &api.Node{ID: "id-m", Name: "m", NodePool: "default", Status: "ready", SchedulingEligibility: "eligible",
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}}}
	for profile, gib := range map[string]int64{"1g.10gb": 10, "3g.40gb": 40, "7g.80gb": 80} {
		n.NodeResources.Devices = append(n.NodeResources.Devices, &api.NodeDeviceResource{
			Vendor: "nvidia", Type: "mig", Name: profile, Instances: []*api.NodeDevice{{ID: "MIG-" + profile, Healthy: true}},
			Attributes: map[string]*api.Attribute{"model": word("NVIDIA A100-SXM4-80GB"), "type": word("A100"), "memory": number(gib*1024, "MiB"), "profile": word(profile)},
		})
	}
	for request, want := range map[string]string{
		"1G": "1g.10gb", "10G": "1g.10gb", "11G": "3g.40gb", "40G": "3g.40gb", "41G": "7g.80gb", "80G": "7g.80gb", "81G": "", "0.5": "", "2": "", "10G(H100)": "",
	} {
		s := servicetest.New(t, "", nomad.NewNode(n, nomad.Hardware{}))
		d, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", request, 1)}, true)
		var refusal *admit.Refusal
		switch {
		case want == "" && (!errors.As(err, &refusal) || refusal.Status != 422):
			t.Errorf("%s: %+v, %v", request, d, err)
		case want != "" && (err != nil || d[0].Tasks[0].Devices[0].Name != "nvidia/mig/"+want || d[0].Tasks[0].Devices[0].Count != 1):
			t.Errorf("%s: %+v, %v", request, d, err)
		}
	}
}

// What is held and was scaled down around the service is let go when what is left of it fits.
func TestWhatShrankWouldStart(t *testing.T) {
	for registeredAs, want := range map[int]bool{1: true, 2: true, 3: false, 4: false} {
		for _, isGang := range []bool{true, false} {
			s := servicetest.New(t, "queue \"q\" {\n gpus = 4\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 4))
			for i := range 2 {
				s.Tenant(t, fmt.Sprint("tenant-", i), 90, "a", i, 0, 16)
			}
			a := servicetest.Ask("job", "1", 3)
			a.Gang = isGang
			if d := s.Submit(t, a); d.Hold == nil {
				t.Fatal("it does not wait")
			}
			s.Register(a)
			registered(s, a, func(j *nomad.Job) { j.Groups[0].Count = registeredAs })
			s.Block(a, registeredAs)
			s.LetTimePass()
			g := recorded(s, a)
			var would bool
			s.State.Do(func(tx *state.Tx) { would = decide.WouldStart(tx, servicetest.KeyOf(a), &g, decide.NewWindow(tx)) })
			if would != want || len(s.AllAssumed()) != 0 {
				t.Errorf("%d of a gang (%v): %v, want %v; %v", registeredAs, isGang, would, want, s.AllAssumed())
			}
		}
	}
}

// What a task is told that it has is what its blocks hold, on the GPU where it goes.
func TestWhatATaskHolds(t *testing.T) {
	for request, want := range map[string]framework.Share{
		"4G":     {GPUs: 1, MemoryMiB: 4 << 10, Vendor: "nvidia", Type: "T4"},
		"0.5":    {GPUs: 1, MemoryMiB: 8 << 10, Vendor: "nvidia", Type: "T4"},
		"1":      {GPUs: 1, MemoryMiB: 16 << 10, Whole: true, Vendor: "nvidia", Type: "T4"},
		"16G":    {GPUs: 1, MemoryMiB: 16 << 10, Whole: true, Vendor: "nvidia", Type: "T4"},
		"2":      {GPUs: 2, MemoryMiB: 16 << 10, Whole: true, Vendor: "nvidia", Type: "T4"},
		"4G,0.5": {GPUs: 1, MemoryMiB: 4 << 10, Vendor: "nvidia", Type: "T4"},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		if got := s.Submit(t, servicetest.Ask("job", request, 1)).Tasks[0].Holds; got != want {
			t.Errorf("%s: %+v, want %+v", request, got, want)
		}
	}
}
