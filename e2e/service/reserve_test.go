// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// call sends JSON to the service's own API.
func (r *replica) call(ctx context.Context, t *testing.T, method, path, body string, into any) int {
	t.Helper()
	return r.callAs(ctx, t, "", method, path, body, into)
}

func (r *replica) callAs(ctx context.Context, t *testing.T, token, method, path, body string, into any) int {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, r.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Nomad-Token", token)
	response, err := http.DefaultClient.Do(request)
	if err != nil { // it does not listen yet
		return 0
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return response.StatusCode
}

// TestReservations reserves all GPUs of a machine: no other job gets one, the
// claimant does, and what is released or expires is free again.
func TestReservations(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "")
	type allocation struct {
		Success       bool
		NodeName      string    `json:"node_name"`
		ReservationID string    `json:"reservation_id"`
		ExpiresAt     time.Time `json:"expires_at"`
		Error         string
		Details       []string
	}
	reserve := func(body string) (a allocation, status int) {
		status = r.call(ctx, t, "POST", "/api/v1/gpu/allocate", body, &a)
		return a, status
	}
	var first allocation
	var status int
	until(ctx, t, "reserve a GPU", time.Minute, func() (bool, string) {
		first, status = reserve(`{"gpu_count":1,"gpu_type":"T4","memory_gb":16,"owner":"ada"}`)
		return status == http.StatusOK, first.Error
	})
	// Another replica tells of it at once, and passes requests on.
	leader := r
	r = serve(ctx, t, c, "")
	var brief allocation
	until(ctx, t, "reserve through the other replica", time.Minute, func() (bool, string) {
		var status int
		brief, status = reserve(`{"gpu_count":1,"ttl_seconds":2}`)
		return status == http.StatusOK, brief.Error
	})
	for _, at := range []*replica{leader, r} {
		for _, id := range []string{first.ReservationID, brief.ReservationID} {
			var one struct {
				Error string `json:"error"`
			}
			if status := at.call(ctx, t, "GET", "/api/v1/gpu/reservations/"+id, "", &one); status != http.StatusOK {
				t.Errorf("reservation %s at %s: %d %s", id, at.URL, status, one.Error)
			}
		}
	}
	// What expires is free again.
	var second allocation
	until(ctx, t, "reserve what has expired", 30*time.Second, func() (bool, string) {
		second, status = reserve(`{"gpu_count":1,"ttl_seconds":3600}`)
		return status == http.StatusOK, second.Error
	})
	if time.Now().Before(brief.ExpiresAt) {
		t.Errorf("a reservation until %s was given to another job", brief.ExpiresAt)
	}
	if status != http.StatusOK || !first.Success || second.ReservationID == first.ReservationID || time.Until(second.ExpiresAt) < 50*time.Minute {
		t.Fatalf("reservations %+v and %+v, status %d", first, second, status)
	}
	if third, status := reserve(`{"gpu_count":1}`); status != http.StatusConflict || len(third.Details) == 0 {
		t.Errorf("a third of two GPUs: %d %+v", status, third)
	}
	if never, status := reserve(`{"gpu_count":1,"memory_gb":40}`); status != http.StatusUnprocessableEntity {
		t.Errorf("40 GB of a T4: %d %+v", status, never)
	}

	// The claimant runs, another job waits.
	if err := submit(ctx, r.API, job{id: "other", meta: map[string]string{"gpu": "1"}}); err != nil {
		t.Fatal(err)
	}
	if err := submit(ctx, r.API, job{id: "claimant", meta: map[string]string{"gpu": "1", "gpu_reservation": first.ReservationID}}); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "claimant", 1)
	for _, a := range allocs(ctx, t, c.API, "", "other") {
		if a.ClientStatus == api.AllocClientStatusRunning {
			t.Errorf("the other job runs on a reserved GPU")
		}
	}
	var held struct {
		Reservations []struct {
			ReservationID string `json:"reservation_id"`
			ClaimedBy     string `json:"claimed_by"`
		}
	}
	until(ctx, t, "see the claim", 30*time.Second, func() (bool, string) {
		r.call(ctx, t, "GET", "/api/v1/gpu/reservations", "", &held)
		for _, h := range held.Reservations {
			if h.ReservationID == first.ReservationID && h.ClaimedBy == "" {
				return false, "it is not claimed"
			}
		}
		return true, ""
	})

	// What is released goes to the one who waits.
	var released allocation
	if status := r.call(ctx, t, "DELETE", "/api/v1/gpu/reservations/"+second.ReservationID, "", &released); status != http.StatusOK {
		t.Errorf("release: %d %+v", status, released)
	}
	if status := r.call(ctx, t, "DELETE", "/api/v1/gpu/reservations/"+second.ReservationID, "", &released); status != http.StatusNotFound {
		t.Errorf("second release: %d %+v", status, released)
	}
	runs(ctx, t, c.API, "other", 1)
	doubleBooked(ctx, t, c.API)
}
