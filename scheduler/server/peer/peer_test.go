// SPDX-License-Identifier: MPL-2.0

package peer_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

// body is an answer's, which breaks off after its text where it has an error.
type body struct {
	io.Reader
	err    error
	closed bool
}

func (b *body) Read(into []byte) (int, error) {
	n, err := b.Reader.Read(into)
	if err == io.EOF && b.err != nil {
		err = b.err
	}
	return n, err
}

func (b *body) Close() error { b.closed = true; return nil }

// zeros is so many of them.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(into []byte) (int, error) { clear(into); return len(into), nil }

// An answer is read to its end and its connection given back, also where it breaks off or is too
// long, which are errors.
func TestAnAnswerIsReadToItsEnd(t *testing.T) {
	broken := errors.New("it breaks off")
	for name, row := range map[string]struct {
		text io.Reader
		err  error
		size int64 // -1: it fails
	}{
		"nothing":             {strings.NewReader(""), nil, 0},
		"some":                {strings.NewReader("{}"), nil, 2},
		"longer than that":    {zeros(peer.MaxAnswer + 1), nil, -1},
		"one that breaks off": {strings.NewReader("{"), broken, -1},
	} {
		b := &body{Reader: row.text, err: row.err}
		resp := &http.Response{Body: b}
		err := peer.ReadWhole(resp)
		if !b.closed || (err != nil) != (row.size < 0) || row.err != nil && !errors.Is(err, row.err) {
			t.Errorf("%s: closed %v, %v", name, b.closed, err)
		}
		if err != nil {
			continue
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != row.size {
			t.Errorf("%s: %d bytes are left, %v", name, n, err)
		}
	}
}
