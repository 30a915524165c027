// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// caller is who a token belongs to, without the token.
type caller struct {
	Accessor string `json:"accessor,omitempty"`
	Name     string `json:"name,omitempty"`
}

// callerTTL is how long an answer about a token is believed, for the audit log
// only: every request is still checked by Nomad itself.
const callerTTL = 5 * time.Minute

// maxCallers bounds how many are remembered.
const maxCallers = 1000

// callers finds out who tokens belong to. It remembers hashes, not tokens.
type callers struct {
	get  func(ctx context.Context, pathAndQuery, token string) (answer, error)
	mu   sync.Mutex
	know map[[sha256.Size]byte]knownCaller
}

type knownCaller struct {
	caller
	until time.Time
}

func newCallers(get func(context.Context, string, string) (answer, error)) *callers {
	return &callers{get: get, know: map[[sha256.Size]byte]knownCaller{}}
}

// who asks Nomad about a token. It is empty without ACLs, and for a token that
// Nomad does not know.
func (c *callers) who(ctx context.Context, token string, now time.Time) caller {
	if token == "" {
		return caller{}
	}
	key := sha256.Sum256([]byte(token))
	c.mu.Lock()
	known, found := c.know[key]
	c.mu.Unlock()
	if found && now.Before(known.until) {
		return known.caller
	}
	known = knownCaller{c.ask(ctx, token), now.Add(callerTTL)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.know) >= maxCallers {
		clear(c.know)
	}
	c.know[key] = known
	return known.caller
}

func (c *callers) ask(ctx context.Context, token string) caller {
	got, err := c.get(ctx, "/v1/acl/token/self", token)
	if err != nil || got.status != http.StatusOK {
		return caller{}
	}
	var self struct{ AccessorID, Name string }
	if err := json.Unmarshal(got.body, &self); err != nil {
		return caller{}
	}
	return caller{Accessor: self.AccessorID, Name: self.Name}
}
