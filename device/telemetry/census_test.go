// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestTaskIsReadFromItsEnvironmentOnly(t *testing.T) {
	r := gpu.Reservation{Version: 1, Vendor: "nvidia", Devices: []gpu.ReservedDevice{{UUID: "GPU-1", Mode: gpu.ModeWhole, MemoryMiB: 7}}}
	value, err := r.EnvValue()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		environ, uuid string
		want          bool
	}{
		"its own":         {"A=b\x00" + r.EnvKey() + "=" + value + "\x00NOMAD_JOB_NAME=j\x00", "GPU-1", true},
		"another device":  {r.EnvKey() + "=" + value, "GPU-2", false},
		"no reservation":  {"NOMAD_JOB_NAME=j", "GPU-1", false},
		"a broken one":    {r.EnvKey() + "={", "GPU-1", false},
		"nothing at all":  {"", "GPU-1", false},
		"a name, no more": {r.EnvKey(), "GPU-1", false},
	} {
		lease, holding, ok := taskOf([]byte(tc.environ), tc.uuid)
		if ok != tc.want || ok && (holding.UUID != "GPU-1" || holding.MemoryMiB != 7 || lease.Job != "j") {
			t.Errorf("%s: %+v, %+v, %v", name, lease, holding, ok)
		}
	}
	if got := label(strings.Repeat("é", 100)); len(got) > 130 || !strings.HasPrefix(got, "é") {
		t.Errorf("a long label is %q", got)
	}
}
