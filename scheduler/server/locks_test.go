// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/locktest"
	"github.com/nomad-gpu/nomad-gpu/internal/testca"
)

// What requests share is read and changed by one of them at a time.
func TestWhatRequestsShareIsLocked(t *testing.T) {
	callers := newCallers(func(context.Context, string, string) (answer, error) { return answer{}, errors.New("no answer") })
	limiter := newLimiter(Limits{JobsPerSecond: 1, JobsBurst: 1})
	turns := newTurns()
	audit := NewAudit(io.Discard)
	bounded := newBounded(nil, Limits{}, nil)
	body := &timedBody{control: http.NewResponseController(httptest.NewRecorder())}
	log, err := OpenLogFile(filepath.Join(t.TempDir(), "audit.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	certificate := files(testca.New(t), "x")
	pair, err := newKeyPair(certificate.CertFile, certificate.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		lock  *sync.Mutex
		calls []func()
	}{
		"callers":     {&callers.mu, []func(){func() { callers.who(t.Context(), goodToken, time.Now()) }}},
		"limiter":     {&limiter.mu, []func(){func() { limiter.allow("10.0.0.1:1") }}},
		"turns":       {&turns.mu, []func(){func() { _, _ = turns.take(t.Context(), "a") }, func() { turns.leave("b", &turn{waiting: 1}) }}},
		"audit":       {&audit.mu, []func(){func() { _ = audit.Write(Record{}) }}},
		"connections": {&bounded.mu, []func(){func() { bounded.take("10.0.0.1") }, func() { bounded.release("10.0.0.2") }}},
		"body":        {&body.mu, []func(){func() { body.limit(time.Time{}) }, body.end}},
		"log file":    {&log.mu, []func(){func() { _, _ = log.Write(nil) }, func() { _ = log.Reopen() }, func() { _ = log.Close() }}},
		"certificate": {&pair.mu, []func(){func() { _, _ = pair.get() }}},
	} {
		t.Run(name, func(t *testing.T) { locktest.MustWait(t, row.lock, row.calls...) })
	}
}
