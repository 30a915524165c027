// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"slices"
)

// transaction books changes in the snapshot and takes them back.
type transaction struct {
	s    *Snapshot
	undo []func()
}

func (p *Planner) begin() *transaction { return &transaction{s: p.snap} }

func (t *transaction) apply(u Usage) error {
	if err := t.s.Apply(u); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { t.s.MustRelease(u.ID) })
	return nil
}

func (t *transaction) release(id string) error {
	u, err := t.s.Release(id)
	if err != nil {
		return err
	}
	t.undo = append(t.undo, func() { t.s.Restore(u) })
	return nil
}

func (t *transaction) rollback() {
	for _, u := range slices.Backward(t.undo) {
		u()
	}
	t.undo = nil
}

// bySize returns positions in descending size of the requests.
func bySize(rs []Request) []int {
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &rs[a], &rs[b]
		return cmp.Or(cmp.Compare(y.Milli(), x.Milli()), cmp.Compare(y.CPUMHz, x.CPUMHz))
	})
	return order
}
