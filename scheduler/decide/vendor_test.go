// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// What no device of a vendor can do is refused at submission, and of the REST API, with
// what to write; also where the operator's default resource names the vendor.
func TestWhatAVendorCannotDoIsRefused(t *testing.T) {
	for _, tc := range []struct {
		config, request string
		sharing         gpu.Sharing
		says            string
	}{
		{"", "0.5(huawei)", "", "devices of huawei are not cut into shares"},
		{`default_resource_name = "npu"`, "8G", "", "devices of huawei are not cut into shares"},
		{"", "0.5(amd)", gpu.SharingMPS, `gpu_sharing "mps" is not possible on devices of amd`},
	} {
		b := servicetest.New(t, tc.config, servicetest.Machine("a", 1))
		ask := servicetest.Ask("job", tc.request, 1)
		ask.Sharing = tc.sharing
		var refused *admit.Refusal
		if _, err := b.Decide(t.Context(), []admit.Ask{ask}, false); !errors.As(err, &refused) || refused.Status != http.StatusUnprocessableEntity || !strings.Contains(refused.Text, tc.says) {
			t.Errorf("%s: %v", tc.request, err)
		}
		if tc.sharing != "" {
			continue
		}
		request, err := gpu.ParseRequest(tc.request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: request, For: time.Minute}, false); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s is reserved: %v", tc.request, err)
		}
	}
}

// The operator's default resource is meant by reservations as by jobs.
func TestDefaultResourceHoldsForReservations(t *testing.T) {
	request, err := gpu.ParseRequest("8G")
	if err != nil {
		t.Fatal(err)
	}
	want := reserve.Want{Namespace: "default", Request: request, For: time.Minute}
	for config, fits := range map[string]bool{"": true, `default_resource_name = "nvidia"`: true, `default_resource_name = "amd"`: false} {
		b := servicetest.New(t, config, servicetest.Machine("a", 1))
		if _, err := b.Reserve(t.Context(), want, false); (err == nil) != fits {
			t.Errorf("%s: %v", config, err)
		}
	}
}
