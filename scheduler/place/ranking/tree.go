// SPDX-License-Identifier: MPL-2.0

// Package ranking keeps many scored entries and finds the best without looking at
// all of them. It knows nothing of what the entries are.
//
// [Tree] holds the scores, [Log] which entries changed since a reader last looked.
package ranking

// Absent is the score of an entry that cannot win.
const Absent = -1 << 31

// block is how many entries of a level have one entry above them.
const block = 16

// Tree keeps scores in blocks with the best of each block, in as many levels as it
// takes, so that finding the best costs the logarithm of the number of entries, and
// a look at those that tie with it. The zero Tree is empty.
type Tree struct {
	levels [][]int32 // levels[0]: the scores; the last has one entry
}

// Empty reports that the tree has no entries yet.
func (t *Tree) Empty() bool { return t.levels == nil }

// Scores are those of the entries. Whoever writes to them calls [Tree.Rebuild]
// before the next question.
func (t *Tree) Scores() []int32 { return t.levels[0] }

// Len is the number of entries there is room for.
func (t *Tree) Len() int {
	if t.levels == nil {
		return 0
	}
	return len(t.levels[0])
}

// Grow makes room for n entries. New ones are Absent.
func (t *Tree) Grow(n int) {
	var old []int32
	if t.levels != nil {
		old = t.levels[0]
	}
	t.levels = t.levels[:0]
	for {
		level := make([]int32, n)
		for i := range level {
			level[i] = Absent
		}
		t.levels = append(t.levels, level)
		if n <= 1 {
			break
		}
		n = (n + block - 1) / block
	}
	copy(t.levels[0], old)
	t.Rebuild()
}

// Rebuild finds the best of every block again.
func (t *Tree) Rebuild() {
	for l := 1; l < len(t.levels); l++ {
		for i := range t.levels[l] {
			t.levels[l][i] = t.best(l-1, i)
		}
	}
}

func (t *Tree) best(level, at int) int32 {
	best := int32(Absent)
	low := at * block
	for _, v := range t.levels[level][low:min(low+block, len(t.levels[level]))] {
		best = max(best, v)
	}
	return best
}

// Set changes the score of one entry.
func (t *Tree) Set(id int, score int32) {
	was := t.levels[0][id]
	if was == score {
		return
	}
	t.levels[0][id] = score
	for l := 1; l < len(t.levels); l++ {
		id /= block
		top := t.levels[l][id]
		switch {
		case score > top:
			t.levels[l][id] = score
		case was == top && score < top:
			score = t.best(l-1, id)
			t.levels[l][id] = score
		default:
			return
		}
		if was = top; score == top {
			return
		}
	}
}

// Top appends to ids the entries with the highest score; none when all are Absent.
// With one only the first of them.
func (t *Tree) Top(ids []int32, one bool) []int32 {
	last := len(t.levels) - 1
	if last < 0 || t.levels[last][0] == Absent {
		return ids
	}
	return t.tied(ids, last, 0, t.levels[last][0], one)
}

// tied appends the entries below one of a level that have its score.
func (t *Tree) tied(ids []int32, level, at int, score int32, one bool) []int32 {
	if level == 0 {
		return append(ids, int32(at))
	}
	below := t.levels[level-1]
	for i := at * block; i < min((at+1)*block, len(below)); i++ {
		if below[i] != score {
			continue
		}
		ids = t.tied(ids, level-1, i, score, one)
		if one {
			break
		}
	}
	return ids
}
