// SPDX-License-Identifier: MPL-2.0

package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func faultCodes(faults []gpu.Fault) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Code)
	}
	return strings.Join(all, " ")
}

func newTestHealth(ignore ...string) *Tracker {
	h := config.Health{Ignore: map[string]bool{}}
	for _, code := range ignore {
		h.Ignore[code] = true
	}
	return New(h)
}

func TestXIDClasses(t *testing.T) {
	for class, numbers := range map[Class][]uint64{
		Application: {13, 31, 43, 45, 68, 94},
		Information: {63},
		Fatal:       {48, 64, 95, 109, 119, 120, 140, 143},
		Link:        {74},
		Lost:        {79},
		Unknown:     {12345},
	} {
		for _, n := range numbers {
			tr := newTestHealth()
			if got := tr.XID("GPU-1", n, epoch); got != class {
				t.Errorf("XID %d is %s, want %s", n, got, class)
			}
			bad := class == Fatal || class == Link || class == Lost
			if got := tr.Faults("GPU-1"); (len(got) == 1) != bad {
				t.Errorf("XID %d makes %v", n, got)
			}
		}
	}
}

func TestLatchedFaultNeedsACleanSurveyAndAProbe(t *testing.T) {
	tr := newTestHealth()
	tr.Survey("GPU-1", nil, epoch)
	tr.XID("GPU-1", 48, epoch)
	if tr.Cleared("GPU-1", epoch) {
		t.Error("cleared before any survey")
	}
	tr.Survey("GPU-1", []hardware.Problem{{Code: "recovery-gpu-reset"}}, epoch.Add(time.Second))
	if len(tr.Suspects()) != 0 || tr.Cleared("GPU-1", epoch) {
		t.Error("cleared although NVML asks for a reset")
	}
	if got := faultCodes(tr.Faults("GPU-1")); got != "xid-48 recovery-gpu-reset" {
		t.Errorf("faults are %s", got)
	}
	tr.Survey("GPU-1", nil, epoch.Add(2*time.Second))
	if got := tr.Suspects(); len(got) != 1 {
		t.Errorf("suspects are %v", got)
	}
	// Something happens while the probe runs.
	tr.XID("GPU-1", 95, epoch.Add(3*time.Second))
	if tr.Cleared("GPU-1", epoch) {
		t.Error("cleared by a probe that began before the last event")
	}
	tr.Survey("GPU-1", nil, epoch.Add(4*time.Second))
	if !tr.Cleared("GPU-1", epoch) || len(tr.Faults("GPU-1")) != 0 {
		t.Errorf("faults are %v", tr.Faults("GPU-1"))
	}
}

func TestObservedFaultKeepsItsBeginning(t *testing.T) {
	tr := newTestHealth()
	p := []hardware.Problem{{Code: "gpu-lost", Message: "m", Action: "a"}}
	tr.Survey("GPU-1", p, epoch)
	tr.Survey("GPU-1", p, epoch.Add(time.Hour))
	if got := tr.Faults("GPU-1"); len(got) != 1 || !got[0].Since.Equal(epoch) {
		t.Errorf("faults are %v", got)
	}
	tr.Survey("GPU-1", nil, epoch.Add(2*time.Hour))
	if got := tr.Faults("GPU-1"); len(got) != 0 {
		t.Errorf("faults are %v", got)
	}
}

// NVML loses a GPU first and does not find it later: to the operator it went once.
func TestAGPUIsGoneSinceItWasLost(t *testing.T) {
	tr := newTestHealth()
	tr.Survey("GPU-1", []hardware.Problem{{Code: hardware.CodeLost}}, epoch)
	for n := range 2 {
		tr.Survey("GPU-1", []hardware.Problem{{Code: hardware.CodeMissing}}, epoch.Add(time.Duration(n+1)*time.Hour))
		if got := tr.Faults("GPU-1"); faultCodes(got) != hardware.CodeMissing || !got[0].Since.Equal(epoch) {
			t.Errorf("faults are %v", got)
		}
	}
}

func TestIgnoredCodesAreNoFaults(t *testing.T) {
	tr := newTestHealth("xid-74", "ecc-remap-pending")
	tr.XID("GPU-1", 74, epoch)
	tr.Survey("GPU-1", []hardware.Problem{{Code: "ecc-remap-pending"}}, epoch)
	if got := tr.Faults("GPU-1"); len(got) != 0 {
		t.Errorf("faults are %v", got)
	}
}

func TestFaultsOutliveThePlugin(t *testing.T) {
	tr := newTestHealth()
	tr.XID("GPU-1", 79, epoch)
	tr.Survey("GPU-1", []hardware.Problem{{Code: "gpu-lost"}}, epoch)
	next := newTestHealth()
	next.Restore([]gpu.GPUState{{UUID: "GPU-1", Faults: tr.Faults("GPU-1")}})
	next.Survey("GPU-1", []hardware.Problem{{Code: "gpu-lost"}}, epoch.Add(time.Hour))
	got := next.Faults("GPU-1")
	if faultCodes(got) != "gpu-lost xid-79" || !got[0].Since.Equal(epoch) || !got[1].Since.Equal(epoch) {
		t.Errorf("faults are %v", got)
	}
}

// An answer that takes long on a busy machine is not a fault; one that does not come is.
func TestSlowIsNotAFaultUntilItLasts(t *testing.T) {
	tr := New(config.Health{Timeout: 5 * time.Second})
	late := []hardware.Problem{{Code: "nvml-timeout", Tentative: true}}
	tr.Survey("GPU-1", late, epoch)
	tr.Survey("GPU-1", late, epoch.Add(29*time.Second))
	if got := tr.Faults("GPU-1"); len(got) != 0 {
		t.Errorf("a late answer is taken for %v", got)
	}
	tr.Survey("GPU-1", nil, epoch.Add(30*time.Second))
	tr.Survey("GPU-1", late, epoch.Add(31*time.Second))
	if got := tr.Faults("GPU-1"); len(got) != 0 {
		t.Errorf("two late answers with one in time between them are taken for %v", got)
	}
	tr.Survey("GPU-1", late, epoch.Add(61*time.Second))
	if got := tr.Faults("GPU-1"); faultCodes(got) != "nvml-timeout" || !got[0].Since.Equal(epoch.Add(31*time.Second)) {
		t.Errorf("an answer that does not come makes %v", got)
	}
	tr.Survey("GPU-1", nil, epoch.Add(62*time.Second))
	if got := tr.Faults("GPU-1"); len(got) != 0 {
		t.Errorf("it has come, and still there are %v", got)
	}
}

// A plugin that starts while an answer is out goes on where the last one stopped.
func TestALateAnswerNeitherClearsNorProves(t *testing.T) {
	tr := New(config.Health{Timeout: 5 * time.Second})
	tr.Restore([]gpu.GPUState{{UUID: "GPU-1", Faults: []gpu.Fault{{Code: "nvml-timeout", Since: epoch}}}})
	tr.Survey("GPU-1", []hardware.Problem{{Code: "nvml-timeout", Tentative: true}}, epoch.Add(time.Minute))
	if got := tr.Faults("GPU-1"); faultCodes(got) != "nvml-timeout" || !got[0].Since.Equal(epoch) {
		t.Errorf("it hung when the last plugin ended, and now there are %v", got)
	}
	tr.XID("GPU-2", 48, epoch)
	tr.Survey("GPU-2", []hardware.Problem{{Code: "nvml-timeout", Tentative: true}}, epoch.Add(time.Second))
	if got := tr.Suspects(); len(got) != 0 {
		t.Errorf("%v would be probed, and does not answer", got)
	}
}

// Every XID of NVIDIA's catalog that the documentation names has its class, those of
// NVLink from Blackwell on too, and the operator can move any.
func TestEveryXIDHasItsClass(t *testing.T) {
	want := map[uint64]Class{}
	for class, numbers := range map[Class][]uint64{
		Application: {8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 94},
		Information: {63, 92, 154},
		Fatal:       {46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
		Link:        {74, 144, 145, 146, 147, 148, 149, 150},
		Lost:        {79},
	} {
		for _, n := range numbers {
			want[n] = class
		}
	}
	says := map[Class]string{Fatal: "release -reset", Link: "nvlink", Lost: "power-cycle"}
	for n := range uint64(200) {
		got := defaultXIDs()[n]
		if got != want[n] {
			t.Errorf("XID %d is %s, want %s", n, got, want[n])
		}
		f, bad := xidFault(n, got)
		if bad != (says[got] != "") {
			t.Errorf("XID %d of class %s is a fault: %v", n, got, bad)
		}
		if bad && (f.Code != fmt.Sprintf("xid-%d", n) || f.Fatal != (got != Link)) {
			t.Errorf("XID %d: %+v", n, f)
		}
	}
	tr := New(config.Health{ApplicationXIDs: []uint64{48}, FatalXIDs: []uint64{13, 999}})
	for n, class := range map[uint64]Class{48: Application, 13: Fatal, 999: Fatal, 79: Lost} {
		if got := tr.Class(n); got != class {
			t.Errorf("XID %d is %s, want %s", n, got, class)
		}
	}
}

// The faults of an earlier run are taken over, each with the device that has it: those
// of events until a probe, the others until a survey, and a GPU's are not its parts' own.
func TestFaultsOfAnEarlierRun(t *testing.T) {
	tr := newTestHealth()
	at := func(codes ...string) (all []gpu.Fault) {
		for n, code := range codes {
			all = append(all, gpu.Fault{Code: code, Since: epoch.Add(time.Duration(n) * time.Second)})
		}
		return all
	}
	tr.Restore([]gpu.GPUState{
		{UUID: "MIG-1", ParentUUID: "GPU-1", Faults: at("xid-48", "xid-95")},
		{UUID: "GPU-1", Faults: at("xid-48", "gpu-lost", "event-memory-poison")},
		{UUID: "GPU-2"},
	})
	for uuid, want := range map[string]string{"GPU-1": "xid-48 gpu-lost event-memory-poison", "MIG-1": "xid-95", "GPU-2": "", "GPU-3": ""} {
		if got := faultCodes(tr.Faults(uuid)); got != want {
			t.Errorf("%s: %q, want %q", uuid, got, want)
		}
	}
	later := epoch.Add(time.Hour)
	for _, uuid := range []string{"GPU-1", "MIG-1", "GPU-2"} {
		tr.Survey(uuid, nil, later)
	}
	if got := faultCodes(tr.Faults("GPU-1")) + ", " + faultCodes(tr.Faults("MIG-1")); got != "xid-48 event-memory-poison, xid-95" {
		t.Errorf("after a clean survey: %s", got)
	}
	if got := fmt.Sprint(tr.Suspects()); got != "[GPU-1 MIG-1]" {
		t.Errorf("a probe could clear %s", got)
	}
	if !tr.Cleared("MIG-1", later) || tr.Cleared("MIG-1", later) || tr.Cleared("GPU-2", later) || len(tr.Latched("GPU-1")) != 2 {
		t.Error("the wrong ones are cleared")
	}
	if n := tr.Recoveries("MIG-1", later); n != 1 {
		t.Errorf("%d recoveries", n)
	}
	if n := tr.Recoveries("MIG-1", later.Add(1)); n != 0 {
		t.Errorf("%d recoveries since", n)
	}
}

// Faults are told the oldest first, and those of one moment by their codes.
func TestFaultsAreInOrder(t *testing.T) {
	tr := newTestHealth()
	tr.Survey("GPU-1", []hardware.Problem{{Code: "b"}}, epoch.Add(time.Second))
	tr.XID("GPU-1", 79, epoch)
	tr.Survey("GPU-1", []hardware.Problem{{Code: "b"}, {Code: "a"}}, epoch.Add(time.Second))
	tr.XID("GPU-1", 48, epoch.Add(time.Second))
	if got := faultCodes(tr.Faults("GPU-1")); got != "xid-79 a b xid-48" {
		t.Errorf("faults are %s", got)
	}
	tr.XID("GPU-1", 79, epoch.Add(time.Hour)) // it stands since it began
	if got := tr.Faults("GPU-1"); faultCodes(got) != "xid-79 a b xid-48" || !got[0].Since.Equal(epoch) {
		t.Errorf("faults are %v", got)
	}
	// An event that means nothing by itself is no fault.
	tr.Event("GPU-2", hardware.Problem{}, epoch)
	tr.Event("GPU-3", hardware.Problem{Code: "event-x", Message: "m", Action: "a", Fatal: true}, epoch)
	if got := tr.Faults("GPU-3"); len(tr.Faults("GPU-2")) != 0 || len(got) != 1 || got[0] != (gpu.Fault{Code: "event-x", Message: "m", Action: "a", Since: epoch, Fatal: true}) {
		t.Errorf("faults are %v and %v", tr.Faults("GPU-2"), got)
	}
	for code, want := range map[string]bool{"xid-74": true, "xid-149": true, "xid-48": false, "xid-": false, "gpu-lost": false, "xid-74x": false} {
		if got := tr.OfLink(gpu.Fault{Code: code}); got != want {
			t.Errorf("%s is one of NVLink: %v", code, got)
		}
	}
}
