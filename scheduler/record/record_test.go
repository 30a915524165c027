// SPDX-License-Identifier: MPL-2.0

package record_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

var key = nomad.JobKey{Namespace: "default", ID: "job"}

// randomText is large, and does not shrink when it is packed.
var randomText = sync.OnceValue(func() string {
	rng := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	for range large {
		text.WriteByte(byte('!' + rng.IntN(90)))
	}
	return text.String()
})

// written is a record with a group whose explanation is so many random letters, in a
// store.
func written(t *testing.T, s record.Store, letters int) *record.Record {
	t.Helper()
	r := record.New(key)
	r.Groups["g"] = record.Group{Key: "k", Decision: admit.Decision{Group: "g", Explanation: []string{randomText()[:letters]}}, Cost: place.Charge{Milli: 5}}
	if err := r.Write(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	small = 10
	large = 120 << 10 // several Variables
)

// Whatever call to Nomad fails: it is told, and nothing that was there is lost.
func TestEveryFailureIsTold(t *testing.T) {
	none := func(error) {}
	for name, row := range map[string]struct {
		letters int
		do      func(ctx context.Context, s record.Store, r *record.Record) error
		ignored int // of the last calls, which clean up
	}{
		"read": {small, func(ctx context.Context, s record.Store, _ *record.Record) error {
			_, err := record.Read(ctx, s, key)
			return err
		}, 0},
		"read large": {large, func(ctx context.Context, s record.Store, _ *record.Record) error {
			_, err := record.Read(ctx, s, key)
			return err
		}, 0},
		"write":       {small, func(ctx context.Context, s record.Store, r *record.Record) error { return r.Write(ctx, s) }, 0},
		"write large": {large, func(ctx context.Context, s record.Store, r *record.Record) error { return r.Write(ctx, s) }, 10},
		"remove":      {large, func(ctx context.Context, s record.Store, r *record.Record) error { return r.Remove(ctx, s) }, 0},
		"load": {large, func(ctx context.Context, s record.Store, _ *record.Record) error {
			var bad error
			err := record.Load(ctx, s, func(*record.Record) bool { return true }, func(err error) { bad = err })
			return errors.Join(err, bad)
		}, 0},
		"load what is gone": {large, func(ctx context.Context, s record.Store, _ *record.Record) error {
			var bad error
			err := record.Load(ctx, s, func(*record.Record) bool { return false }, func(err error) { bad = err })
			return errors.Join(err, bad)
		}, 0},
		"reserve": {small, func(ctx context.Context, s record.Store, _ *record.Record) error {
			return (&record.Reservation{Version: record.Version, ID: "new"}).Create(ctx, s)
		}, 0},
		"release": {small, func(ctx context.Context, s record.Store, _ *record.Record) error {
			return record.RemoveReservation(ctx, s, "old")
		}, 0},
		"list reservations": {small, func(ctx context.Context, s record.Store, _ *record.Record) error {
			_, err := record.Reservations(ctx, s, none)
			return err
		}, 0},
		"read history": {small, func(ctx context.Context, s record.Store, _ *record.Record) error {
			_, err := record.ReadHistory(ctx, s, none)
			return err
		}, 0},
		"write history": {small, func(ctx context.Context, s record.Store, _ *record.Record) error {
			return (&record.History{}).Write(ctx, s, &record.History{})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 1
			for at := 0; at <= calls; at++ {
				s := nomadtest.NewStore()
				r := written(t, s, row.letters)
				if err := (&record.Reservation{Version: record.Version, ID: "old"}).Create(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				f := &nomadtest.Faulty{Store: s, FailAt: at}
				err := row.do(t.Context(), f, r)
				if at == 0 {
					if err != nil {
						t.Fatal(err)
					}
					calls = f.Calls
					continue
				}
				if !errors.Is(err, nomadtest.ErrFaulty) && at <= calls-row.ignored {
					t.Errorf("call %d of %d failed, and it said %v", at, calls, err)
				}
				if strings.HasPrefix(name, "write") {
					if again, err := record.Read(t.Context(), s, key); err != nil || again.Groups["g"].Key != "k" {
						t.Errorf("call %d of %d failed, and the record is %+v, %v", at, calls, again, err)
					}
				}
			}
		})
	}
}

func TestRecords(t *testing.T) {
	s := nomadtest.NewStore()
	empty, err := record.Read(t.Context(), s, key)
	if err != nil || empty.Stored() || len(empty.Groups) != 0 || empty.Key() != key {
		t.Fatalf("got %+v, %v", empty, err)
	}
	r := written(t, s, small)
	read, err := record.Read(t.Context(), s, key)
	if err != nil || !read.Stored() || !read.SameAs(r) || read.SameAs(empty) || read.Groups["g"].Cost.Milli != 5 {
		t.Fatalf("got %+v, %v", read, err)
	}
	if err := record.New(key).Write(t.Context(), s); !errors.Is(err, nomad.ErrConflict) {
		t.Errorf("written over what was not read: %v", err)
	}
	if err := record.New(key).Replacing(read).Write(t.Context(), s); err != nil {
		t.Error(err)
	}
	if err := read.Write(t.Context(), s); !errors.Is(err, nomad.ErrConflict) {
		t.Errorf("written over what has changed: %v", err)
	}
	lost := read.Lost()
	lost.Groups["h"] = record.Group{}
	if lost.Stored() || len(read.Groups) != 1 || len(lost.Groups) != 2 {
		t.Errorf("lost %+v, read %+v", lost, read)
	}
	read.Seal()
	if g := read.Groups["g"]; g.Fingerprint == "" || g.Fingerprint != g.Ask.Fingerprint(&g.Decision) {
		t.Errorf("sealed as %q", g.Fingerprint)
	}
}

// What another release wrote, or none did, is told and not taken for a decision.
func TestStrangeRecords(t *testing.T) {
	for text, says := range map[string]string{
		`{"v":2}`: "this release reads 1 to 1", `{"v":0}`: "version 0", `{`: "decode decision",
	} {
		s := nomadtest.NewStore()
		path := ""
		for p := range func() map[string]nomad.Item { written(t, s, small); return s.Items }() {
			path = p
		}
		item := s.Items[path]
		item.Values = map[string]string{"record": text}
		s.Items[path] = item
		var told error
		err := record.Load(t.Context(), s, func(*record.Record) bool { t.Error("kept"); return true }, func(err error) { told = err })
		if err != nil || told == nil || !strings.Contains(told.Error(), says) || len(s.Items) != 1 {
			t.Errorf("%s: %v, told %v", text, err, told)
		}
	}
	s := nomadtest.NewStore()
	r := written(t, s, large)
	for path, item := range s.Items {
		if parts := item.Values["parts"]; parts != "" {
			for _, wrong := range []string{"0", "-1", "1025", "x"} {
				item.Values = map[string]string{"series": item.Values["series"], "parts": wrong}
				s.Items[path] = item
				if _, err := record.Read(t.Context(), s, key); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("names %q parts", wrong)) {
					t.Errorf("%s parts: %v", wrong, err)
				}
			}
		}
	}
	_ = r
}

// What is not needed is deleted, with all its parts; what is stays.
func TestLoadKeepsWhatIsNeeded(t *testing.T) {
	s := nomadtest.NewStore()
	written(t, s, large)
	all := len(s.Items)
	var kept []*record.Record
	if err := record.Load(t.Context(), s, func(r *record.Record) bool { kept = append(kept, r); return true }, nil); err != nil {
		t.Fatal(err)
	}
	if len(kept) != 1 || kept[0].Key() != key || len(s.Items) != all {
		t.Errorf("kept %v; %d of %d Variables", kept, len(s.Items), all)
	}
	if err := record.Load(t.Context(), s, func(*record.Record) bool { return false }, nil); err != nil || len(s.Items) != 0 {
		t.Errorf("%d Variables are left, %v", len(s.Items), err)
	}
}

func TestReservations(t *testing.T) {
	s := nomadtest.NewStore()
	at := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	r := &record.Reservation{Version: record.Version, ID: "r-1", Namespace: "team", Owner: "me", ExpiresAt: at, Usage: place.Usage{NodeID: "n"}}
	if err := r.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for id, text := range map[string]string{"new": `{"v":9,"id":"new"}`, "torn": `{`} {
		if _, err := s.Put(t.Context(), nomad.Item{Path: "nomad-gpu/reservations/" + id, Values: map[string]string{"reservation": text}}); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	list, err := record.Reservations(t.Context(), s, func(err error) { told = append(told, err.Error()) })
	if err != nil || len(list) != 1 || list[0].Owner != "me" || !list[0].ExpiresAt.Equal(at) || list[0].Usage.NodeID != "n" {
		t.Errorf("got %+v, %v", list, err)
	}
	if len(told) != 2 || strings.Contains(strings.Join(told, " "), "%!w") {
		t.Errorf("told %q", told)
	}
	for range 2 { // the second time there is none
		if err := record.RemoveReservation(t.Context(), s, "r-1"); err != nil || len(s.Items) != 2 {
			t.Errorf("%d Variables, %v", len(s.Items), err)
		}
	}
}

func TestHistory(t *testing.T) {
	s := nomadtest.NewStore()
	fail := func(err error) { t.Error(err) }
	first, err := record.ReadHistory(t.Context(), s, fail)
	if err != nil || len(first.Events) != 0 {
		t.Fatalf("got %+v, %v", first, err)
	}
	at := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	next := &record.History{
		Events: []view.Event{{Text: "it had to go"}}, Evicted: map[string][]time.Time{"default/low": {at}},
		EvictedQueues: map[string][]time.Time{"q": {at}}, Used: map[string]quota.Use{"q": {MilliSeconds: 5}}, UsedAt: at,
	}
	if err := next.Write(t.Context(), s, first); err != nil {
		t.Fatal(err)
	}
	if text := s.Items["nomad-gpu/history"].Values["record"]; !strings.HasPrefix(text, `{"v":1,`) {
		t.Errorf("stored without its version: %s", text)
	}
	read, err := record.ReadHistory(t.Context(), s, fail)
	if err != nil || len(read.Events) != 1 || len(read.Evicted["default/low"]) != 1 || len(read.EvictedQueues["q"]) != 1 || read.Used["q"].MilliSeconds != 5 || !read.UsedAt.Equal(at) {
		t.Errorf("got %+v, %v", read, err)
	}
	if err := (&record.History{}).Write(t.Context(), s, first); !errors.Is(err, nomad.ErrConflict) {
		t.Errorf("written over what was not read: %v", err)
	}
	if err := (&record.History{}).Write(t.Context(), s, read); err != nil {
		t.Error(err)
	}
	for _, text := range []string{`{"v":2,"events":[{}]}`, `{`} {
		item := s.Items["nomad-gpu/history"]
		item.Values = map[string]string{"record": text}
		s.Items[item.Path] = item
		var told error
		read, err := record.ReadHistory(t.Context(), s, func(err error) { told = err })
		if err != nil || told == nil || strings.Contains(told.Error(), "%!w") || len(read.Events) != 0 {
			t.Errorf("%s: %+v, %v, told %v", text, read, err, told)
		}
		if err := (&record.History{}).Write(t.Context(), s, read); err != nil {
			t.Errorf("%s: it cannot be replaced: %v", text, err)
		}
	}
}
