// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// errSlow is what reading a body gives when its client is too slow.
var errSlow = errors.New("the request's body did not arrive in time")

// patient bounds how long a client may take with a body and with an answer. All of a job, and of a request
// to the service's own API, has to come within bodyTimeout; of what streams through to
// Nomad the next part. It stands outside of all that answers: what no handler reads of a
// body, the server reads before it answers, and it waits no longer than that either. What
// streams through from Nomad may be read as slowly as its client likes: little of it is here.
func patient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole := routeOf(r).kind != passed || strings.HasPrefix(r.URL.Path, ownPrefix)
		if whole {
			answer := newTimedAnswer(w, r)
			defer answer.limit()
			w = answer
		}
		if r.Body != nil && r.Body != http.NoBody {
			body := &timedBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
			until := time.Now().Add(bodyTimeout)
			if whole {
				body.until = until
			}
			body.limit(until)
			defer body.end()
			r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
			r.Body = body
		}
		next.ServeHTTP(w, r)
	})
}

// bodyKey is where a request keeps its body, which a proxy wraps.
type bodyKey struct{}

// timedBody is a body with a time limit.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	until   time.Time // zero: each part has a limit of its own
	// deadline is that of the read that goes on or failed, in Unix nanoseconds; 0: none.
	deadline atomic.Int64

	mu    sync.Mutex
	ended bool // the handler has returned, and the connection's deadlines are the server's
}

// limit gives the connection a deadline for reading; zero: none.
func (b *timedBody) limit(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		_ = b.control.SetReadDeadline(until) // a test's recorder has none, and is not slow
	}
}

// end is for when the handler has returned: a proxy's transport may still read, and
// would take the deadline of an idle connection away.
func (b *timedBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

// late reports whether a request ended because its body was too slow. The server cancels
// a request whose body cannot be read, so that the error may say that alone.
func late(r *http.Request, err error) bool {
	if errors.Is(err, errSlow) {
		return true
	}
	body, ok := r.Context().Value(bodyKey{}).(*timedBody)
	if !ok {
		return false
	}
	deadline := body.deadline.Load()
	return deadline != 0 && time.Now().UnixNano() >= deadline
}

// Read reads the next part. The connection keeps its deadline until all of the body is
// there, since the server reads the rest before it answers. Then it has none, or
// whoever answers later would be taken for gone.
func (b *timedBody) Read(p []byte) (int, error) {
	until := b.until
	if until.IsZero() {
		until = time.Now().Add(bodyTimeout)
	}
	b.deadline.Store(until.UnixNano())
	b.limit(until)
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, errSlow
	}
	b.deadline.Store(0)
	if errors.Is(err, io.EOF) {
		b.limit(time.Time{})
	}
	return n, err
}

// Close ends the body; no more of it is read then.
func (b *timedBody) Close() error {
	defer b.limit(time.Time{})
	return b.ReadCloser.Close()
}
