// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits bound what one client can ask of the service: the operator's.
type Limits struct {
	// MaxBodyBytes bounds the body of a job. Other bodies stream through.
	MaxBodyBytes int64
	// JobsPerSecond and JobsBurst bound the job submissions of one client
	// address; 0 for no bound.
	JobsPerSecond float64
	JobsBurst     int
	// Connections bounds the open connections, ConnectionsPerClient those of one client;
	// 0 for no bound.
	Connections          int
	ConnectionsPerClient int
	// DecideTimeout is for a decision and Nomad's answer to it together.
	DecideTimeout time.Duration
}

// Limits that need no key are generous for people and tight for accidents.
const (
	maxHeaderBytes = 64 << 10
	// headerTimeout is for a TLS handshake and for reading a request's headers,
	// bodyTimeout for a job's body, and for the next part of a body that streams
	// through, answerTimeout for the next part of an answer that does not stream through;
	// idleTimeout for idle connections.
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	// whoseTimeout is for asking Nomad whose a token is.
	whoseTimeout = 10 * time.Second
	// shutdownTimeout is how long a stopping server waits for requests.
	shutdownTimeout = 5 * time.Second
)

func (l Limits) validate() error {
	switch {
	case l.MaxBodyBytes < 1:
		return fmt.Errorf("a limit of %d bytes on the body of a job must be positive", l.MaxBodyBytes)
	case l.JobsPerSecond < 0 || l.JobsPerSecond > 0 && l.JobsBurst < 1:
		return fmt.Errorf("a rate of %v jobs per second needs a burst of at least 1", l.JobsPerSecond)
	case l.DecideTimeout <= 0:
		return fmt.Errorf("a time limit of %s on decisions must be positive", l.DecideTimeout)
	}
	return nil
}

// maxClients bounds how many client addresses are remembered.
const maxClients = 10_000

// limiter counts the job submissions per client address.
type limiter struct {
	limits  Limits
	mu      sync.Mutex
	clients map[string]*rate.Limiter
}

func newLimiter(l Limits) *limiter {
	return &limiter{limits: l, clients: map[string]*rate.Limiter{}}
}

// ownPrefix starts the paths of the service's own API, where reservations count
// like jobs.
const ownPrefix = "/api/"

// wrap refuses job submissions above the rate with 429.
func (l *limiter) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reserves := r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, ownPrefix)
		if l.limits.JobsPerSecond > 0 && (reserves || routeOf(r).kind != passed) && !l.allow(r.RemoteAddr) {
			w.Header().Set("Retry-After", "1")
			text := fmt.Sprintf("more than %v job submissions per second from this address; try again in a second", l.limits.JobsPerSecond)
			if reserves {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusTooManyRequests)
				fmt.Fprintf(w, `{"success":false,"error":%q}`+"\n", text) //nolint:errcheck // the client has gone
				return
			}
			http.Error(w, text, http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (l *limiter) allow(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[host]
	if c == nil {
		l.makeRoom()
		c = rate.NewLimiter(rate.Limit(l.limits.JobsPerSecond), l.limits.JobsBurst)
		l.clients[host] = c
	}
	return c.Allow()
}

// makeRoom forgets the clients that have their whole burst again.
func (l *limiter) makeRoom() {
	if len(l.clients) < maxClients {
		return
	}
	for host, c := range l.clients {
		if c.Tokens() >= float64(l.limits.JobsBurst) {
			delete(l.clients, host)
		}
	}
	if len(l.clients) >= maxClients {
		clear(l.clients)
	}
}
