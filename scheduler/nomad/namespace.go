// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"time"
)

const (
	// look is how often the namespaces are read. Nomad would tell a blocking query of one that was
	// made, but not of one that the service's token may read only now.
	look = time.Second
	// settle is how long after a namespace was seen first an event stream is opened: another server
	// than the one that told of it may answer, and not know it yet.
	settle = 500 * time.Millisecond
	// brief is how long such a small question may take, and the first word of an event stream: no
	// other stream is read meanwhile.
	brief = 30 * time.Second
)

// namespaces are those that the service's token sees. Any server may answer, as any may serve the
// event stream: one that is behind the others is so in both.
func (c *Client) namespaces(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	q := query(ctx)
	q.AllowStale = true
	list, _, err := c.api.Namespaces().List(q)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	names := make(map[string]bool, len(list))
	for _, n := range list {
		names[n.Name] = true
	}
	return names, nil
}

// another is closed once there is a namespace that is none of these. Nomad says of an event stream of
// all namespaces that it has those that exist when it is opened: what happens in one that is
// made later is never told.
func (c *Client) another(ctx context.Context, known map[string]bool) <-chan struct{} {
	found := make(chan struct{})
	go func() {
		for pause(ctx, look) {
			names, err := c.namespaces(ctx)
			if err != nil {
				continue // the stream and the lists tell what is wrong with Nomad
			}
			for name := range names {
				if !known[name] && pause(ctx, settle) {
					close(found)
					return
				}
			}
		}
	}()
	return found
}

// pause waits, and reports whether there is anything to go on with.
func pause(ctx context.Context, long time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(long):
		return true
	}
}
