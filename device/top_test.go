package device

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestTopShowsWhoUsesHowMuch(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	state := r.openState()
	lease := gpu.Lease{ID: gpu.LeaseID("5f1c", "train"), AllocID: "5f1c", Namespace: "default", Job: "resnet", Group: "g", Task: "train", Phase: gpu.PhaseRunning,
		Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{3, 4}}}}
	if err := state.WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	p, err := openPlatform(hclog.NewNullLogger(), r.service.reconciler.config)
	if err != nil {
		t.Fatal(err)
	}
	top := &Top{config: r.service.reconciler.config, platform: p}
	defer top.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		view, err := top.Look()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range view.Devices {
			if d.UUID != uuid {
				continue
			}
			if len(d.Tasks) == 1 && d.Tasks[0].Job == "resnet" && d.Tasks[0].AllocID == "5f1c" && d.Tasks[0].Processes == 0 && d.MPS != nil && d.MPS.Ready {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("it shows %+v", d)
			}
		}
	}
}
