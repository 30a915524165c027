// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TestCheckpoints are the Variables of that name alone, of all namespaces.
func TestCheckpoints(t *testing.T) {
	fails := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case fails:
			http.Error(w, "Permission denied", http.StatusForbidden)
		case r.URL.Path != "/v1/vars" || q.Get("prefix") != "nomad/jobs/" || q.Get("namespace") != "*":
			t.Errorf("asked %s", r.URL)
		default:
			fmt.Fprintln(w, `[{"Namespace":"default","Path":"nomad/jobs/train/gpu-checkpoint","ModifyTime":1000000000},
				{"Namespace":"ml","Path":"nomad/jobs/a/b/gpu-checkpoint","ModifyTime":2000000000},
				{"Namespace":"ml","Path":"nomad/jobs/train","ModifyTime":3000000000},
				{"Namespace":"ml","Path":"nomad/jobs/gpu-checkpoint","ModifyTime":3000000000},
				{"Namespace":"ml","Path":"nomad/jobs//gpu-checkpoint","ModifyTime":3000000000},
				{"Namespace":"ml","Path":"other/train/gpu-checkpoint","ModifyTime":3000000000}]`)
		}
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	got, err := NewClient(client).Checkpoints(t.Context())
	want := map[JobKey]time.Time{{"default", "train"}: time.Unix(1, 0), {"ml", "a/b"}: time.Unix(2, 0)}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	fails = true
	if got, err := NewClient(client).Checkpoints(t.Context()); err == nil {
		t.Errorf("a token that may not list them reads %v", got)
	}
}
