// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

var dialer = net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}

// answer is what Nomad said to a request of the service's own.
type answer struct {
	status int
	body   []byte
}

// denied reports whether the caller has no right to the request.
func (a answer) denied() bool {
	return a.status == http.StatusForbidden || a.status == http.StatusUnauthorized
}

// nomadGet asks Nomad with a caller's token.
func (p *proxy) nomadGet(ctx context.Context, pathAndQuery, token string) (answer, error) {
	return p.nomadDo(ctx, http.MethodGet, pathAndQuery, token, nil)
}

func (p *proxy) nomadDo(ctx context.Context, method, pathAndQuery, token string, body []byte) (answer, error) {
	address := p.config.Nomad.Scheme + "://" + p.config.Nomad.Host + pathAndQuery
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("ask Nomad: %w", err)
	}
	if token != "" {
		r.Header.Set("X-Nomad-Token", token)
	}
	resp, err := p.transport.RoundTrip(r)
	if err != nil {
		return answer{}, fmt.Errorf("ask Nomad: %w", err)
	}
	defer resp.Body.Close()
	// Half an answer is none: the missing half may have the fact in question.
	text, err := io.ReadAll(http.MaxBytesReader(nil, resp.Body, peer.MaxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("read Nomad's answer: %w", err)
	}
	return answer{resp.StatusCode, text}, nil
}
