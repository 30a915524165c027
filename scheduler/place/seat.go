package place

// Beside is whom a request may sit with on a GPU whose tasks step aside for each other. Of
// other GPUs it asks nothing.
type Beside uint8

const (
	BesideAny Beside = iota
	// BesideLower is beside tasks that step aside for it at once: their seats have a lower
	// priority, or they do not use the GPU.
	BesideLower
	// BesideNone is alone.
	BesideNone
)

// sits reports whether a request may take a seat on a GPU, as far as it matters who sits
// there.
func (sh *Shape) sits(b *gpuPool, index int) bool {
	if sh.req.Beside == BesideAny {
		return true
	}
	at := b.positions[index]
	g := &b.node.spec.GPUs[at]
	if !g.hasSeats() {
		return true
	}
	for _, u := range b.node.holders {
		if u.takes(at) && (sh.req.Beside == BesideNone || !u.Idle && g.SeatPriorityOf(u.SeatPriority) >= g.SeatPriorityOf(sh.req.SeatPriority)) {
			return false
		}
	}
	return true
}
