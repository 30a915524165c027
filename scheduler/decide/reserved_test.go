package decide

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
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
