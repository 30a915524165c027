// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// said is what the body of a request may say about where it goes and whose it is, for
// Nomad to read where the URL and the headers say nothing.
type said struct{ Region, Namespace, AuthToken, SecretID string }

// said reads it as Nomad does, which reads no such thing in a scaling, a payload or a force.
func (s *submission) said() (b said) {
	if s.route.kind != scaled && !s.route.payload {
		// Nomad reads the first JSON value too, and refuses an invalid one.
		_ = json.NewDecoder(bytes.NewReader(s.body)).Decode(&b)
	}
	return b
}

// firstValue is the first JSON value of a body: Nomad reads no further. It is the body
// where that does not begin with one.
func firstValue(body []byte) []byte {
	var first json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&first); err != nil {
		return body
	}
	return first
}

// where is the query that asks Nomad about the job of a scaling, a dispatch, a revert or a force. It has
// nothing else of the caller's: one that blocks would not be answered.
func (s *submission) where() url.Values {
	query, said, where := s.r.URL.Query(), s.said(), url.Values{}
	for name, otherwise := range map[string]string{"namespace": said.Namespace, "region": said.Region} {
		if value := query.Get(name); value != "" {
			where.Set(name, value)
		} else if otherwise != "" {
			where.Set(name, otherwise)
		}
	}
	return where
}

// token is the caller's token.
func (s *submission) token() string {
	if token := nomad.CallerToken(s.r.Header); token != "" {
		return token
	}
	said := s.said()
	if s.route.kind == dispatched || s.route.kind == reverted {
		return said.AuthToken
	}
	return said.SecretID
}

// malformed refuses what Nomad cannot read either.
func malformed(what string, err error) *admit.Refusal {
	return &admit.Refusal{Status: http.StatusBadRequest, Text: fmt.Sprintf("%s cannot be read: %v", what, err)}
}
