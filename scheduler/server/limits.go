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

// Limits bound what one client can ask of the service.
type Limits struct {
	// MaxBodyBytes bounds the body of a job. Other bodies stream through.
	MaxBodyBytes int64
	// MaxHeaderBytes bounds a request's headers.
	MaxHeaderBytes int
	// JobsPerSecond and JobsBurst bound the job submissions of one client
	// address; 0 for no bound.
	JobsPerSecond float64
	JobsBurst     int
	// HeaderTimeout is for reading a request's headers, BodyTimeout for a
	// job's body, IdleTimeout for idle connections, DecideTimeout for a
	// decision and Nomad's answer to it together.
	HeaderTimeout, BodyTimeout, IdleTimeout, DecideTimeout time.Duration
	// ShutdownTimeout is how long a stopping server waits for requests.
	ShutdownTimeout time.Duration
}

// DefaultLimits are generous for people and tight for accidents.
func DefaultLimits() Limits {
	return Limits{
		MaxBodyBytes:    8 << 20,
		MaxHeaderBytes:  64 << 10,
		JobsPerSecond:   200,
		JobsBurst:       400,
		HeaderTimeout:   10 * time.Second,
		BodyTimeout:     30 * time.Second,
		IdleTimeout:     2 * time.Minute,
		DecideTimeout:   time.Minute,
		ShutdownTimeout: shutdownDefault,
	}
}

func (l Limits) validate() error {
	switch {
	case l.MaxBodyBytes < 1 || l.MaxHeaderBytes < 1:
		return fmt.Errorf("limits on bodies and headers must be positive")
	case l.JobsPerSecond < 0 || l.JobsPerSecond > 0 && l.JobsBurst < 1:
		return fmt.Errorf("a rate of %v jobs per second needs a burst of at least 1", l.JobsPerSecond)
	case min(l.HeaderTimeout, l.BodyTimeout, l.IdleTimeout, l.DecideTimeout, l.ShutdownTimeout) <= 0:
		return fmt.Errorf("time limits must be positive")
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
