// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Top shows what a plugin has written, here of one that has stopped: nothing changes meanwhile.
func TestTopShowsWhoUsesHowMuch(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	r.service.cancel()
	r.service.work.Wait()
	state := r.openState()
	lease := gpu.Lease{ID: gpu.LeaseID("5f1c", "train"), AllocID: "5f1c", Namespace: "default", Job: "resnet", Group: "g", Task: "train", Phase: gpu.PhaseRunning,
		Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{3, 4}}}}
	used := gpu.TaskUsage{LeaseID: lease.ID, UUID: uuid, MemoryMiB: 1536, Milli: 250, Processes: 2}
	if err := errors.Join(state.WriteLease(lease), state.WriteUsage(gpu.Usage{Tasks: []gpu.TaskUsage{used}})); err != nil {
		t.Fatal(err)
	}
	top, err := inventory.TopOf(r.service.reconciler.config)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	view, err := top.Look()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(view.Devices, func(d inventory.TopDevice) bool { return d.UUID == uuid })
	if at < 0 || len(view.Devices[at].Tasks) != 1 {
		t.Fatalf("it shows %+v", view.Devices)
	}
	d := view.Devices[at]
	want := inventory.TopTask{Namespace: "default", Job: "resnet", Group: "g", Task: "train", AllocID: "5f1c", ShareMiB: lease.Holdings[0].MostMiB(), UsedMiB: 1536, Milli: 250, Processes: 2}
	if d.Tasks[0] != want || d.HeldInstances != 2 {
		t.Errorf("%d instances are held, by %+v; want 2, by %+v", d.HeldInstances, d.Tasks[0], want)
	}
	mps := must(state.GPU(uuid)).MPS
	if d.MPS == nil || mps == nil || d.MPS.Ready != mps.Ready || d.MPS.Starts != mps.Generation || d.MPS.MaxClients != mps.MaxClients {
		t.Errorf("its MPS daemon is shown as %+v; the plugin says %+v", d.MPS, mps)
	}
}
