package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// given are the device blocks that a group keeps, and the work is narrowed to
// nodes that can serve them. Nil means that they are written anew: nothing of
// the group runs that this would replace, and it waits with blocks that were
// right when it came, while the room that there is now may be of another form.
func (c *choosing) given(was *GroupRecord) []admit.TaskDecision {
	if c.waits(was) {
		c.avoid(was.Excluded)
		if was.Decision.Hold != nil || c.hasRoom() {
			return nil
		}
	}
	c.keepTo(was.Decision.Tasks)
	c.avoid(was.Excluded)
	return was.Decision.Tasks
}

// waits reports whether a group waits as a whole, with blocks that are the
// service's to change.
func (c *choosing) waits(was *GroupRecord) bool {
	b := c.book
	blocked := b.blocked[c.key]
	waiting := was.Decision.Hold != nil || blocked != nil && blocked.Missing[c.ask.Group] > 0
	return waiting && b.live(c.key, c.ask.Group) == 0 && !slices.ContainsFunc(c.ask.Tasks, admit.TaskAsk.Plain)
}

// asBefore asks for what the device blocks of a group hold, where they are not
// to be written anew.
func (c *choosing) asBefore(was *GroupRecord) {
	if c.waits(was) {
		return
	}
	for i := range c.parts {
		c.parts[i].req.Cover = was.Covered
	}
}

func covered(parts []part) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return p.req.Cover })
}

// avoid leaves out nodes whose room is made for somebody else.
func (c *choosing) avoid(excluded map[string]string) {
	if len(excluded) == 0 {
		return
	}
	banned := map[string]bool{}
	for id := range excluded {
		banned[id] = true
	}
	for i := range c.parts {
		c.parts[i].req.Nodes = c.book.board(false).without(c.parts[i].req.Nodes, banned)
	}
}

func (c *choosing) hasRoom() bool {
	_, err := c.book.board(false).place(c.parts)
	return err == nil
}

// otherwise reports whether a group that waits as a whole has room now, but
// not for the device blocks that it waits with.
func (b *Book) otherwise(key nomad.JobKey, g *GroupRecord) bool {
	c := &choosing{book: b, key: key, ask: &g.Ask}
	if !c.waits(g) || b.served(g) {
		return false
	}
	q, err := b.config.QueueFor(g.Ask.Namespace, g.Ask.Queue)
	if err != nil {
		return false
	}
	if c.parts, err = b.parts(&g.Ask, q); err != nil || len(c.parts) == 0 {
		return false
	}
	c.avoid(g.Excluded)
	return c.hasRoom()
}

// served reports whether a node that a group may use has room for its device
// blocks as they are.
func (b *Book) served(g *GroupRecord) bool {
	w := b.writtenAs(g)
	return slices.ContainsFunc(b.nodeIDs(), func(id string) bool { return g.Excluded[id] == "" && b.servesNow(id, w, nil) })
}
