// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"time"
)

// answerPart is how much of an answer a client has to take at a time.
const answerPart = 256 << 10

// timedAnswer is an answer that its client has to read: each part of it has a time limit, and the
// connection of a client that does not read is closed. Without that, all of an answer would lie in
// memory for as long as its client keeps the connection.
type timedAnswer struct {
	http.ResponseWriter
	control *http.ResponseController
	within  time.Duration // for each part
}

func newTimedAnswer(w http.ResponseWriter, r *http.Request) *timedAnswer {
	a := &timedAnswer{w, http.NewResponseController(w), answerTimeout}
	if r.Body != nil && r.Body != http.NoBody {
		a.within += bodyTimeout // the server reads the rest of it before it answers
	}
	return a
}

// Unwrap lets an http.ResponseController reach the connection.
func (a *timedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// limit gives the next part a time limit, and the last one, which the server sends when the handler
// has returned. The server takes it away before the connection's next request.
func (a *timedAnswer) limit() {
	_ = a.control.SetWriteDeadline(time.Now().Add(a.within)) // a test's recorder has none, and reads
}

func (a *timedAnswer) Write(p []byte) (written int, err error) {
	for first := true; err == nil && (first || len(p) > 0); first = false {
		a.limit()
		n := 0
		n, err = a.ResponseWriter.Write(p[:min(len(p), answerPart)])
		written, p = written+n, p[n:]
	}
	return written, err
}
