package decide

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestReservedRoomIsKept: Nomad knows of no reservation and would start work in
// reserved room, so what finds no other room is held.
func TestReservedRoomIsKept(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	ten, _ := gpu.ParseRequest("10G")
	hold, err := b.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: ten, For: time.Minute}, false)
	if err != nil {
		t.Fatal(err)
	}
	waits := ask("waits", "8G", 1)
	if d := b.decide(t, waits); d.Hold == nil || d.Hold.Kind != view.WaitsForRoom || !strings.Contains(d.Hold.Sentence, "the room on a is reserved until ") {
		t.Errorf("a job that needs reserved room got %+v", d.Hold)
	}
	if d := b.decide(t, ask("fits", "2G", 1)); d.Hold != nil {
		t.Errorf("a job that needs none of it is held: %+v", d.Hold)
	}
	if err := b.Release(t.Context(), hold.ID); err != nil {
		t.Fatal(err)
	}
	if d := b.decide(t, waits); d.Hold != nil || len(d.Preferred) != 1 {
		t.Errorf("after the release it got %+v", d)
	}
}

func TestReservations(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
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
	if d := b.decide(t, ask("other", "8G", 1)); len(d.Preferred) != 0 {
		t.Error("reserved room was given away")
	}
	a := ask("claims", "8G", 1)
	a.Reservation = hold.ID
	if d := b.decide(t, a); len(d.Preferred) != 1 {
		t.Errorf("the claim got %+v", d)
	}
	if len(b.store.items) != 2 { // two decisions, no reservation
		t.Errorf("%d variables are stored", len(b.store.items))
	}
	again := ask("again", "1G", 1)
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
	b := newBench(t, "", machine("a", 1))
	a := ask("job", "6G", 1)
	b.decide(t, a)
	b.register(a)
	b.run(a, "alloc", "a", 0, 0, 6)
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
	if len(b.book.flights) != 0 {
		t.Errorf("the refusal left %d flights", len(b.book.flights))
	}
	a.Count = 1
	if d := b.decide(t, a); d.Hold != nil {
		t.Errorf("as it was it is held: %+v", d.Hold)
	}
}
