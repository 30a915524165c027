package device

import (
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

func newTestHealth(ignore ...string) *healthTracker {
	h := config.Health{Ignore: map[string]bool{}}
	for _, code := range ignore {
		h.Ignore[code] = true
	}
	return newHealthTracker(h)
}

func TestXIDClasses(t *testing.T) {
	for class, numbers := range map[xidClass][]uint64{
		xidApplication: {13, 31, 43, 45, 68, 94},
		xidInformation: {63},
		xidFatal:       {48, 64, 95, 109, 119, 120, 140, 143},
		xidLink:        {74},
		xidLost:        {79},
		xidUnknown:     {12345},
	} {
		for _, n := range numbers {
			tr := newTestHealth()
			if got := tr.xid("GPU-1", n, epoch); got != class {
				t.Errorf("XID %d is %s, want %s", n, got, class)
			}
			bad := class == xidFatal || class == xidLink || class == xidLost
			if got := tr.faults("GPU-1"); (len(got) == 1) != bad {
				t.Errorf("XID %d makes %v", n, got)
			}
		}
	}
}

func TestLatchedFaultNeedsACleanSurveyAndAProbe(t *testing.T) {
	tr := newTestHealth()
	tr.survey("GPU-1", nil, epoch)
	tr.xid("GPU-1", 48, epoch)
	if tr.cleared("GPU-1", epoch) {
		t.Error("cleared before any survey")
	}
	tr.survey("GPU-1", []hardware.Problem{{Code: "recovery-gpu-reset"}}, epoch.Add(time.Second))
	if len(tr.suspects()) != 0 || tr.cleared("GPU-1", epoch) {
		t.Error("cleared although NVML asks for a reset")
	}
	if got := faultCodes(tr.faults("GPU-1")); got != "xid-48 recovery-gpu-reset" {
		t.Errorf("faults are %s", got)
	}
	tr.survey("GPU-1", nil, epoch.Add(2*time.Second))
	if got := tr.suspects(); len(got) != 1 {
		t.Errorf("suspects are %v", got)
	}
	// Something happens while the probe runs.
	tr.xid("GPU-1", 95, epoch.Add(3*time.Second))
	if tr.cleared("GPU-1", epoch) {
		t.Error("cleared by a probe that began before the last event")
	}
	tr.survey("GPU-1", nil, epoch.Add(4*time.Second))
	if !tr.cleared("GPU-1", epoch) || len(tr.faults("GPU-1")) != 0 {
		t.Errorf("faults are %v", tr.faults("GPU-1"))
	}
}

func TestObservedFaultKeepsItsBeginning(t *testing.T) {
	tr := newTestHealth()
	p := []hardware.Problem{{Code: "gpu-lost", Message: "m", Action: "a"}}
	tr.survey("GPU-1", p, epoch)
	tr.survey("GPU-1", p, epoch.Add(time.Hour))
	if got := tr.faults("GPU-1"); len(got) != 1 || !got[0].Since.Equal(epoch) {
		t.Errorf("faults are %v", got)
	}
	tr.survey("GPU-1", nil, epoch.Add(2*time.Hour))
	if got := tr.faults("GPU-1"); len(got) != 0 {
		t.Errorf("faults are %v", got)
	}
}

// NVML loses a GPU first and does not find it later: to the operator it went once.
func TestAGPUIsGoneSinceItWasLost(t *testing.T) {
	tr := newTestHealth()
	tr.survey("GPU-1", []hardware.Problem{{Code: hardware.CodeLost}}, epoch)
	for n := range 2 {
		tr.survey("GPU-1", []hardware.Problem{{Code: hardware.CodeMissing}}, epoch.Add(time.Duration(n+1)*time.Hour))
		if got := tr.faults("GPU-1"); faultCodes(got) != hardware.CodeMissing || !got[0].Since.Equal(epoch) {
			t.Errorf("faults are %v", got)
		}
	}
}

func TestIgnoredCodesAreNoFaults(t *testing.T) {
	tr := newTestHealth("xid-74", "ecc-remap-pending")
	tr.xid("GPU-1", 74, epoch)
	tr.survey("GPU-1", []hardware.Problem{{Code: "ecc-remap-pending"}}, epoch)
	if got := tr.faults("GPU-1"); len(got) != 0 {
		t.Errorf("faults are %v", got)
	}
}

func TestFaultsOutliveThePlugin(t *testing.T) {
	tr := newTestHealth()
	tr.xid("GPU-1", 79, epoch)
	tr.survey("GPU-1", []hardware.Problem{{Code: "gpu-lost"}}, epoch)
	next := newTestHealth()
	next.restore([]gpu.GPUState{{UUID: "GPU-1", Faults: tr.faults("GPU-1")}})
	next.survey("GPU-1", []hardware.Problem{{Code: "gpu-lost"}}, epoch.Add(time.Hour))
	got := next.faults("GPU-1")
	if faultCodes(got) != "gpu-lost xid-79" || !got[0].Since.Equal(epoch) || !got[1].Since.Equal(epoch) {
		t.Errorf("faults are %v", got)
	}
}

// An answer that takes long on a busy machine is not a fault; one that does not come is.
func TestSlowIsNotAFaultUntilItLasts(t *testing.T) {
	tr := newHealthTracker(config.Health{Timeout: 5 * time.Second})
	late := []hardware.Problem{{Code: "nvml-timeout", Tentative: true}}
	tr.survey("GPU-1", late, epoch)
	tr.survey("GPU-1", late, epoch.Add(29*time.Second))
	if got := tr.faults("GPU-1"); len(got) != 0 {
		t.Errorf("a late answer is taken for %v", got)
	}
	tr.survey("GPU-1", nil, epoch.Add(30*time.Second))
	tr.survey("GPU-1", late, epoch.Add(31*time.Second))
	if got := tr.faults("GPU-1"); len(got) != 0 {
		t.Errorf("two late answers with one in time between them are taken for %v", got)
	}
	tr.survey("GPU-1", late, epoch.Add(61*time.Second))
	if got := tr.faults("GPU-1"); faultCodes(got) != "nvml-timeout" || !got[0].Since.Equal(epoch.Add(31*time.Second)) {
		t.Errorf("an answer that does not come makes %v", got)
	}
	tr.survey("GPU-1", nil, epoch.Add(62*time.Second))
	if got := tr.faults("GPU-1"); len(got) != 0 {
		t.Errorf("it has come, and still there are %v", got)
	}
}

// A plugin that starts while an answer is out goes on where the last one stopped.
func TestALateAnswerNeitherClearsNorProves(t *testing.T) {
	tr := newHealthTracker(config.Health{Timeout: 5 * time.Second})
	tr.restore([]gpu.GPUState{{UUID: "GPU-1", Faults: []gpu.Fault{{Code: "nvml-timeout", Since: epoch}}}})
	tr.survey("GPU-1", []hardware.Problem{{Code: "nvml-timeout", Tentative: true}}, epoch.Add(time.Minute))
	if got := tr.faults("GPU-1"); faultCodes(got) != "nvml-timeout" || !got[0].Since.Equal(epoch) {
		t.Errorf("it hung when the last plugin ended, and now there are %v", got)
	}
	tr.xid("GPU-2", 48, epoch)
	tr.survey("GPU-2", []hardware.Problem{{Code: "nvml-timeout", Tentative: true}}, epoch.Add(time.Second))
	if got := tr.suspects(); len(got) != 0 {
		t.Errorf("%v would be probed, and does not answer", got)
	}
}
