// SPDX-License-Identifier: MPL-2.0

// Package peer is what the replicas of the service have in common when one hands a request to
// the one that leads: how it is marked, and how the answer is read. The proxy of Nomad's API
// and the REST API both do.
package peer

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// Forwarded is the header of a request that another replica passed on, so that two replicas
// that disagree about who leads do not pass it on for ever. Its value is the leader's secret:
// who has it may name the client.
const Forwarded = "X-Nomad-Gpu-Forwarded"

// MaxAnswer bounds an answer that is read whole, in bytes.
const MaxAnswer = 64 << 20

// ReadWhole reads an answer to its end, so that its server is done with it before the client
// gets any of it.
func ReadWhole(resp *http.Response) error {
	text, err := io.ReadAll(http.MaxBytesReader(nil, resp.Body, MaxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return nil
}
