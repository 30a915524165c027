// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Two half-used GPUs become a full and an empty one.
func TestRebalanceHeals(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 1), testNode("n2", "A100", 1))
	p.Learn([]Request{{GPUs: 1, Whole: true, CPUMHz: 1000}}) // no task wants half a GPU
	fresh := func(u *Usage) { u.Start = noon }
	held(t, p.snap, "a", "n1", 0, 500, 10, fresh)
	held(t, p.snap, "b", "n2", 0, 500, 10, fresh)
	moves := p.Rebalance(Rebalancing{Moves: 5}, noon)
	if len(moves) != 1 || moves[0].Why != MovesForWaste || moves[0].GainMilli < 100 || moves[0].From.NodeID == moves[0].To.NodeID {
		t.Fatalf("moves %+v", moves)
	}
	if n := len(p.snap.UsagesOn("n1")); n != 1 {
		t.Errorf("proposing moved something: %d on n1", n)
	}
	late := noon.Add(1000 * time.Hour)
	if moves := p.Rebalance(Rebalancing{Moves: 5}, late); len(moves) != 0 {
		t.Errorf("moves that lose more work than they gain: %+v", moves)
	}
}

// Where tasks end, room for several GPUs is worth moving for: waste alone does not see it.
func TestRebalanceBringsRoomTogether(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 8), testNode("n2", "A100", 8))
	p.ExpectEnds(1)
	p.Learn([]Request{{GPUs: 8, Whole: true, CPUMHz: 1000}, {GPUs: 1, Whole: true, CPUMHz: 1000}})
	held(t, p.snap, "alone", "n1", 0, 1000, 10, func(u *Usage) { u.Start = noon })
	for i := range 6 {
		held(t, p.snap, fmt.Sprint("other", i), "n2", i, 1000, 10)
	}
	moves := p.Rebalance(Rebalancing{Moves: 5}, noon)
	if len(moves) != 1 || moves[0].From.ID != "alone" || moves[0].To.NodeID != "n2" {
		t.Errorf("moves %+v", moves)
	}
}

// A node that is to be emptied loses what ends by itself, when its work is saved.
func TestRebalanceEmptiesNodes(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*Usage)
		o      Rebalancing
		fits   bool // elsewhere
		want   string
	}{
		"it has just begun":              {func(u *Usage) { u.Start = noon.Add(-time.Minute) }, Rebalancing{}, true, "b"},
		"it ran long, and saved nothing": {func(*Usage) {}, Rebalancing{}, true, ""},
		"it ran long, and saved its work": {
			func(u *Usage) { u.WorkSaved = 119 * time.Minute }, Rebalancing{}, true, "b",
		},
		"it lost less than it would run":    {func(*Usage) {}, Rebalancing{Horizon: 3 * time.Hour}, true, "b"},
		"it does not end":                   {func(u *Usage) { u.Ends, u.Start = false, noon }, Rebalancing{}, true, ""},
		"it may not be moved":               {func(u *Usage) { u.Start = noon }, Rebalancing{CanMove: func(*Usage) bool { return false }}, true, ""},
		"it is pinned":                      {func(u *Usage) { u.Start, u.Pinned = noon, true }, Rebalancing{}, true, ""},
		"it has not run as long as it must": {func(u *Usage) { u.Start, u.MinRun = noon, time.Hour }, Rebalancing{}, true, ""},
		"nothing is known of it":            {func(u *Usage) { u.Start = noon }, Rebalancing{Request: func(*Usage) (Request, bool) { return Request{}, false }}, true, ""},
		"there is no room elsewhere":        {func(u *Usage) { u.Start = noon }, Rebalancing{}, false, ""},
	} {
		a, b, c := testNode("a", "A100", 2), testNode("b", "A100", 1), testNode("c", "A100", 1)
		p := testPlanner(t, a, b, c)
		held(t, p.snap, "batch", "a", 0, 1000, 10, func(u *Usage) { u.Ends, u.Start = true, noon.Add(-2*time.Hour); row.change(u) })
		if !row.fits {
			held(t, p.snap, "in the way", "b", 0, 1000, 10)
		}
		a.Ineligible = true
		if err := p.snap.UpdateNode(a); err != nil {
			t.Fatal(err)
		}
		row.o.Moves, row.o.Emptying = 5, map[string]bool{"a": true, "c": true} // what leaves a does not go to c
		moves := p.Rebalance(row.o, noon)
		got := ""
		if len(moves) > 0 {
			got = moves[0].To.NodeID
			if moves[0].Why != MovesToEmpty || moves[0].GainMilli != 1000 || len(moves) > 1 {
				t.Errorf("%s: %+v", name, moves)
			}
		}
		if got != row.want {
			t.Errorf("%s: it goes to %q, want %q", name, got, row.want)
		}
	}
}

// A GPU that several tasks overload loses one, to a GPU that stays cool with it.
func TestRebalanceCoolsGPUs(t *testing.T) {
	for name, row := range map[string]struct {
		here, there int64 // measured use beyond what is guaranteed
		hot, alone  bool
		moves       bool
	}{
		"hot for long, and the other idle":        {400, 0, true, false, true},
		"hot for a moment":                        {400, 0, false, false, false},
		"hot by one task alone":                   {700, 0, true, true, false},
		"the other would be hot then":             {400, 400, true, false, false},
		"the other would be as hot as is allowed": {400, 350, true, false, true},
	} {
		a, b := testNode("a", "A100", 1), testNode("b", "A100", 1)
		a.GPUs[0].SurplusMilli, b.GPUs[0].SurplusMilli = row.here, row.there
		s := NewSnapshot()
		for _, n := range []Node{a, b} {
			if err := s.AddNode(n); err != nil {
				t.Fatal(err)
			}
		}
		p := NewPlanner(s, PolicyBalanced, DefaultWeights())
		fresh := func(u *Usage) { u.Start = noon }
		held(t, s, "one", "a", 0, 300, 10, fresh)
		if !row.alone {
			held(t, s, "two", "a", 0, 300, 10, fresh)
		}
		held(t, s, "other", "b", 0, 100, 10, func(u *Usage) { u.Pinned = true })
		o := Rebalancing{Moves: 5}
		if row.hot {
			o.Hot = map[string]bool{a.GPUs[0].ID: true}
		}
		moves := slices.DeleteFunc(p.Rebalance(o, noon), func(m Move) bool { return m.Why != MovesForHeat })
		if row.moves != (len(moves) == 1) {
			t.Errorf("%s: %+v", name, moves)
		}
	}
}

// Work of any priority is moved for what waits, if that loses less than what waits gains.
func TestRoomByMoving(t *testing.T) {
	old := func(u *Usage) { u.Start = noon.Add(-2 * time.Hour) }
	saved := func(u *Usage) { u.WorkSaved = 2*time.Hour - time.Minute }
	for name, row := range map[string]struct {
		setup func(s *Snapshot)
		rs    []string
		wait  time.Duration
		o     Rebalancing
		moves []string // usage and where it goes
		err   error
	}{
		"nothing has to be moved": {func(s *Snapshot) { held(t, s, "x", "a", 0, 500, 90) }, []string{"2"}, time.Hour, Rebalancing{}, nil, nil},
		"one of two halves goes to the other": {
			func(s *Snapshot) { held(t, s, "x", "a", 0, 500, 90, fresh); held(t, s, "y", "b", 0, 500, 90) },
			[]string{"2"}, time.Hour, Rebalancing{}, []string{"x to b"}, nil,
		},
		"the one whose work is saved": {
			func(s *Snapshot) { held(t, s, "x", "a", 0, 500, 90, old); held(t, s, "y", "b", 0, 500, 90, old, saved) },
			[]string{"2"}, time.Hour, Rebalancing{}, []string{"y to a"}, nil,
		},
		"all of it would be lost": {
			func(s *Snapshot) {
				held(t, s, "x", "a", 0, 1000, 90, func(u *Usage) { u.Start = noon.Add(-3 * time.Hour) })
				held(t, s, "y", "b", 0, 1000, 90, func(u *Usage) { u.Start = noon.Add(-3 * time.Hour) })
			},
			[]string{"2"}, time.Hour, Rebalancing{}, nil, ErrUnpaid,
		},
		"the wait is short": {
			func(s *Snapshot) { held(t, s, "x", "a", 0, 500, 90, old); held(t, s, "y", "b", 0, 500, 90, old) },
			[]string{"2"}, time.Minute, Rebalancing{}, nil, ErrUnpaid,
		},
		"the wait is long, and counts for an hour": {
			func(s *Snapshot) { held(t, s, "x", "a", 0, 1000, 90, old); held(t, s, "y", "b", 0, 1000, 90, old) },
			[]string{"2"}, 1000 * time.Hour, Rebalancing{}, nil, ErrUnpaid,
		},
		"the two of a gang": {
			func(s *Snapshot) {
				held(t, s, "x", "a", 0, 300, 90, fresh)
				held(t, s, "y", "b", 0, 300, 90, fresh)
				held(t, s, "z", "c", 0, 300, 90, func(u *Usage) { u.Pinned = true })
			},
			[]string{"2", "2"}, time.Hour, Rebalancing{}, []string{"x to c", "y to c"}, nil,
		},
		"more moves than are allowed": {
			func(s *Snapshot) {
				held(t, s, "x", "a", 0, 300, 90, fresh)
				held(t, s, "y", "b", 0, 300, 90, fresh)
				held(t, s, "z", "c", 0, 300, 90, func(u *Usage) { u.Pinned = true })
			},
			[]string{"2", "2"}, time.Hour, Rebalancing{Moves: 1}, nil, ErrNoRoom,
		},
		"it may not be moved": {
			func(s *Snapshot) { held(t, s, "x", "a", 0, 500, 90); held(t, s, "y", "b", 0, 500, 90) },
			[]string{"2"}, time.Hour, Rebalancing{CanMove: func(*Usage) bool { return false }}, nil, ErrNoRoom,
		},
		"the other node is to be emptied": {
			func(s *Snapshot) { held(t, s, "x", "a", 0, 500, 90); held(t, s, "y", "b", 0, 500, 90) },
			[]string{"2"}, time.Hour, Rebalancing{Emptying: map[string]bool{"a": true, "b": true}}, nil, ErrNoRoom,
		},
		"it has no other place": {
			func(s *Snapshot) {
				held(t, s, "x", "a", 0, 1000, 90)
				held(t, s, "y", "b", 0, 1000, 90)
				held(t, s, "z", "b", 1, 1000, 90)
			},
			[]string{"2(A100)"}, time.Hour, Rebalancing{}, nil, ErrNoRoom,
		},
	} {
		nodes := []Node{testNode("a", "A100", 2), testNode("b", "A100", 2)}
		if len(row.rs) > 1 {
			nodes = append(nodes, testNode("c", "A100", 1))
		}
		p := testPlanner(t, nodes...)
		row.setup(p.snap)
		var rs []Request
		for i, text := range row.rs {
			rs = append(rs, ask(t, fmt.Sprint("waits-", i), text))
		}
		if row.o.Moves == 0 {
			row.o.Moves = 5
		}
		got, err := p.RoomByMoving(rs, row.wait, row.o, noon)
		var gain int64 // what the group asks for
		for i := range rs {
			gain += p.LeastCharge(&rs[i]).Milli
		}
		var moves []string
		for _, m := range got.Moves {
			if m.Why != MovesForRoom || m.GainMilli != gain || m.LostMilliSeconds != m.From.LostMilliSeconds(noon) {
				t.Errorf("%s: move %+v, and the group gains %d", name, m, gain)
			}
			moves = append(moves, m.From.ID+" to "+m.To.NodeID)
		}
		slices.Sort(moves)
		if !errors.Is(err, row.err) || !slices.Equal(moves, row.moves) || err == nil && len(got.Placements) != len(rs) {
			t.Errorf("%s: %v, %v", name, moves, err)
		}
	}
}

func fresh(u *Usage) { u.Start = noon }

// Where one move is enough, it is found: beside the planner all are tried. What is found can
// be carried out.
func TestOneMoveIsFound(t *testing.T) {
	found, none := 0, 0
	for seed := range 400 {
		rng := rand.New(rand.NewPCG(uint64(seed), 17))
		s := NewSnapshot()
		for n := range 2 + rng.IntN(3) {
			node := testNode(fmt.Sprint("n", n), "A100", 1+rng.IntN(3))
			node.CPUMHz = 8000
			if err := s.AddNode(node); err != nil {
				t.Fatal(err)
			}
			for u := range rng.IntN(5) {
				milli := int64(100 * (1 + rng.IntN(9)))
				_ = s.Apply(Usage{
					ID: fmt.Sprint(n, "u", u), NodeID: node.ID, CPUMHz: int64(rng.IntN(4)) * 1000, Priority: rng.IntN(3), Pinned: rng.IntN(5) == 0,
					Takes: []Take{{GPU: rng.IntN(len(node.GPUs)), Milli: milli, Slices: (milli*80 + 999) / 1000}},
				}) // what does not fit is not there
			}
		}
		p := NewPlanner(s, PolicyPack, quick())
		r := Request{ID: "waits", CPUMHz: int64(rng.IntN(4)) * 1000, GPUs: 1 + rng.IntN(2), Whole: true}
		if _, err := p.Place(&r); err == nil {
			continue
		}
		got, err := p.RoomByMoving([]Request{r}, time.Hour, Rebalancing{Moves: 3}, noon)
		switch one := oneMoveDoes(p, &r); {
		case one && (err != nil || len(got.Moves) != 1):
			t.Fatalf("cluster %d: one move would do, and %d are proposed: %v", seed, len(got.Moves), err)
		case err != nil:
			none++
			continue
		}
		found++
		for _, m := range got.Moves {
			if _, err := s.Release(m.From.ID); err != nil {
				t.Fatal(err)
			}
		}
		for _, pl := range got.Placements {
			if err := s.Apply(pl.Usage); err != nil {
				t.Fatalf("cluster %d: %v", seed, err)
			}
		}
		for _, m := range got.Moves {
			if err := s.Apply(m.To.Usage); err != nil || m.To.NodeID == m.From.NodeID {
				t.Fatalf("cluster %d: move %+v: %v", seed, m, err)
			}
		}
	}
	if found < 20 || none < 20 {
		t.Errorf("moves are found %d times, and not %d times: that tries nothing", found, none)
	}
}

// oneMoveDoes tries to move each usage to each other node.
func oneMoveDoes(p *Planner, r *Request) bool {
	for _, id := range p.snap.NodeIDs() {
		for _, u := range p.snap.UsagesOn(id) {
			if u.Pinned {
				continue
			}
			again, _ := p.requestOf(&u)
			t := p.begin()
			does := t.release(u.ID) == nil && func() bool {
				here := *r
				here.Nodes = []string{id}
				pl, err := p.Place(&here)
				if err != nil || t.apply(pl.Usage) != nil {
					return false
				}
				for other := range p.snap.Nodes {
					if again.Nodes = []string{other}; other == id {
						continue
					}
					if _, err := p.Place(&again); err == nil {
						return true
					}
				}
				return false
			}()
			t.rollback()
			if does {
				return true
			}
		}
	}
	return false
}

func TestGPUTimeOfMuchWork(t *testing.T) {
	const days = 30
	if got, want := GPUTime(8*1000*days*24*3600), 8*days*24*time.Hour; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
