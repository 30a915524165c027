package place

// changeLog lists which sets of banks changed, in order. Readers keep their
// position and look only at what is new; a reader that fell behind the kept part
// reads everything again.
type changeLog struct {
	base int64
	ids  []int32
}

// keptChanges bounds the log. A reader that is further behind than this is
// cheaper to rebuild than to catch up.
const keptChanges = 1 << 17

// add appends a change and returns its position.
func (l *changeLog) add(id int32) int64 {
	if len(l.ids) >= 2*keptChanges {
		n := copy(l.ids, l.ids[len(l.ids)-keptChanges:])
		l.base += int64(len(l.ids) - n)
		l.ids = l.ids[:n]
	}
	l.ids = append(l.ids, id)
	return l.base + int64(len(l.ids)) - 1
}

// end is the position of the next change.
func (l *changeLog) end() int64 { return l.base + int64(len(l.ids)) }

// since returns the changes from a position on; ok is false when they are no
// longer kept.
func (l *changeLog) since(at int64) (ids []int32, ok bool) {
	if at < l.base {
		return nil, false
	}
	return l.ids[at-l.base:], true
}
