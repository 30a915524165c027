package decide

import (
	"testing"
)

func TestMoves(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1), machine("b", 1))
	for _, name := range []string{"a", "b"} {
		a := ask("job-"+name, "7G", 1)
		b.decide(t, a)
		b.register(a)
		b.run(a, "alloc-"+name, name, 0, 0, 7)
	}
	for _, m := range b.book.Moves(5) {
		if m.From == m.To || b.book.allocs[m.AllocID] == nil || m.Text == "" {
			t.Errorf("a move that cannot be: %+v", m)
		}
		b.book.Reserve(&m)
		if len(b.book.flights) != 1 || b.book.Moves(5) != nil {
			t.Error("more moves are proposed while one is under way")
		}
		b.book.Cancel(&m)
	}
}
