// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestReservedRoomIsKept: Nomad knows of no reservation and would start work in
// reserved room, so what finds no other room is held.
func TestReservedRoomIsKept(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	ten, _ := gpu.ParseRequest("10G")
	hold, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: ten, For: time.Minute}, false)
	if err != nil {
		t.Fatal(err)
	}
	waits := servicetest.Ask("waits", "8G", 1)
	if d := b.Submit(t, waits); d.Hold == nil || d.Hold.Kind != view.WaitsForRoom || !strings.Contains(d.Hold.Sentence, "the room on a is reserved until ") {
		t.Errorf("a job that needs reserved room got %+v", d.Hold)
	}
	if d := b.Submit(t, servicetest.Ask("fits", "2G", 1)); d.Hold != nil {
		t.Errorf("a job that needs none of it is held: %+v", d.Hold)
	}
	if err := b.Release(t.Context(), hold.ID); err != nil {
		t.Fatal(err)
	}
	if d := b.Submit(t, waits); d.Hold != nil || len(d.Preferred) != 1 {
		t.Errorf("after the release it got %+v", d)
	}
}

func TestReservations(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	r, _ := gpu.ParseRequest("10G")
	hold, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, false)
	if err != nil || hold.MemoryMiB != 10*1024 || hold.NodeName != "a" {
		t.Fatalf("got %+v, %v", hold, err)
	}
	if got, err := b.Held(hold.ID); err != nil || got.ID != hold.ID {
		t.Errorf("held is %+v, %v", got, err)
	}
	if _, err := b.Held("r-none"); !errors.Is(err, reserve.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if d := b.Submit(t, servicetest.Ask("other", "8G", 1)); len(d.Preferred) != 0 {
		t.Error("reserved room was given away")
	}
	a := servicetest.Ask("claims", "8G", 1)
	a.Reservation = hold.ID
	if d := b.Submit(t, a); len(d.Preferred) != 1 {
		t.Errorf("the claim got %+v", d)
	}
	if len(b.Store.Items) != 2 { // two decisions, no reservation
		t.Errorf("%d variables are stored", len(b.Store.Items))
	}
	again := servicetest.Ask("again", "1G", 1)
	again.Reservation = hold.ID
	if _, err := b.Decide(t.Context(), []admit.Ask{again}, false); err == nil {
		t.Error("a reservation was claimed twice")
	}
	many, _ := gpu.ParseRequest("65")
	if _, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: many, For: time.Minute}, false); err == nil || strings.Contains(err.Error(), "r-") {
		t.Errorf("got %v", err)
	}
	big, _ := gpu.ParseRequest("40G")
	if _, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: big, For: time.Minute}, false); err == nil || !strings.Contains(err.Error(), "ever") {
		t.Errorf("got %v", err)
	}
}

// A group that runs cannot be held without holding what runs, so it does not
// grow into reserved room.
func TestAGroupDoesNotGrowIntoReservedRoom(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "6G", 1)
	b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc", "a", 0, 0, 6)
	six, _ := gpu.ParseRequest("6G")
	if _, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: six, For: time.Minute}, false); err != nil {
		t.Fatal(err)
	}
	a.Count = 2
	_, err := b.Decide(t.Context(), []admit.Ask{a}, false)
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Status != 409 || !strings.Contains(refusal.Text, "no room for 1 of 2 allocs: the room on a is reserved until") {
		t.Fatalf("got %v", err)
	}
	if len(b.AllAssumed()) != 0 {
		t.Errorf("the refusal left %d assumed", len(b.AllAssumed()))
	}
	a.Count = 1
	if d := b.Submit(t, a); d.Hold != nil {
		t.Errorf("as it was it is held: %+v", d.Hold)
	}
}

// A reservation without a vendor is for the operator's default, as a job is.
func TestAReservationIsOfTheDefaultVendor(t *testing.T) {
	for word, fits := range map[string]bool{"gpu": true, "nvidia": true, "amd": false, "npu": false} {
		b := servicetest.New(t, "default_resource_name = \""+word+"\"\n", servicetest.Machine("a", 1))
		r, err := gpu.ParseRequest("1")
		if err != nil {
			t.Fatal(err)
		}
		want := reserve.Want{Namespace: "default", Request: r, For: time.Minute}
		if _, err := b.Reserve(t.Context(), want, true); (err == nil) != fits {
			t.Errorf("default %q: %v", word, err)
		}
	}
}

// What was admitted and waits for room has the quota: a reservation does not take it.
func TestAReservationLeavesWhatWasAdmittedItsQuota(t *testing.T) {
	for request, refused := range map[string]bool{"4G": false, "8G": true} {
		b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
		waits := servicetest.Ask("waits", "12G", 1)
		b.Submit(t, waits)
		b.Register(waits)
		b.Block(waits, 1)
		b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(waits), "g") })
		r, err := gpu.ParseRequest(request)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, true)
		var refusal *admit.Refusal
		if refused != (errors.As(err, &refusal) && refusal.Status == 409 && strings.Contains(refusal.Text, "admitted and waits for room")) {
			t.Errorf("%s: got %v", request, err)
		}
	}
}

// A reservation that there is no room or no quota for names the largest that there is, and
// that one is given.
func TestARefusedReservationSaysWhatWouldFit(t *testing.T) {
	const quota = "queue \"small\" {\n gpu_memory_gb = 6\n borrow = false\n namespaces = [\"default\"]\n}"
	for name, tc := range map[string]struct {
		config string
		taken  string
		asks   string
		want   view.Fits
	}{
		"memory":             {"", "10G", "8G", view.Fits{Ask: "6G", Allocs: 1, Nodes: 1}},
		"memory and share":   {"", "10G", "8G,0.5", view.Fits{Ask: "6G,0.375", Allocs: 1, Nodes: 1}},
		"less than a GiB":    {"", "15G", "2G", view.Fits{Ask: "1G", Allocs: 1, Nodes: 1}},
		"a number":           {"", "", "2", view.Fits{Ask: "1", Allocs: 1, Nodes: 1}},
		"part of one":        {"", "12G", "1", view.Fits{Ask: "0.25", Allocs: 1, Nodes: 1}},
		"quota":              {quota, "", "8G", view.Fits{Ask: "6G", Allocs: 1, Nodes: 1}},
		"nothing is left":    {"", "16G", "8G", view.Fits{}},
		"more than there is": {"", "", "40G", view.Fits{Ask: "16G", Allocs: 1, Nodes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, tc.config, servicetest.Machine("a", 1))
			take := func(text string) error {
				r, err := gpu.ParseRequest(text)
				if err != nil {
					t.Fatal(err)
				}
				_, err = b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, false)
				return err
			}
			if tc.taken != "" {
				if err := take(tc.taken); err != nil {
					t.Fatal(err)
				}
			}
			var refusal *admit.Refusal
			refused := take(tc.asks)
			if !errors.As(refused, &refusal) {
				t.Fatalf("asked for %s: %v", tc.asks, refused)
			}
			var got view.Fits
			if instead := (*reserve.Instead)(nil); errors.As(refused, &instead) {
				got = instead.Fits
			}
			if got != tc.want {
				t.Fatalf("would fit %+v, want %+v; %v", got, tc.want, refusal)
			}
			if got.Ask != "" {
				if last := refusal.Details[len(refusal.Details)-1]; last != got.Text() {
					t.Errorf("the last detail is %q", last)
				}
				if err := take(got.Ask); err != nil {
					t.Errorf("what would fit does not: %v", err)
				}
			}
		})
	}
}
