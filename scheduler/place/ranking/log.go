// SPDX-License-Identifier: MPL-2.0

package ranking

// Log lists which entries changed, in order. Readers keep their position and look
// only at new entries; a reader that fell too far behind reads everything
// again.
type Log struct {
	base int64
	ids  []int32
}

// Kept bounds the log. A reader that is further behind than this is cheaper to
// rebuild than to catch up.
const Kept = 1 << 17

// Add appends a change and returns its position.
func (l *Log) Add(id int32) int64 {
	if len(l.ids) >= 2*Kept {
		n := copy(l.ids, l.ids[len(l.ids)-Kept:])
		l.base += int64(len(l.ids) - n)
		l.ids = l.ids[:n]
	}
	l.ids = append(l.ids, id)
	return l.base + int64(len(l.ids)) - 1
}

// End is the position of the next change.
func (l *Log) End() int64 { return l.base + int64(len(l.ids)) }

// Since returns the changes from a position on; ok is false when they are no
// longer kept.
func (l *Log) Since(at int64) (ids []int32, ok bool) {
	if at < l.base {
		return nil, false
	}
	return l.ids[at-l.base:], true
}
