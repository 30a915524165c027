// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// inMemory is a Nomad that is reached without a network, so that tests may hold the clock.
// It notes what is asked, and whose answer was not closed.
type inMemory struct {
	// answer gives the status and the body of a request; the value is encoded, unless it is
	// a reader, and an error is that of a broken connection.
	answer func(r *http.Request) (int, any)

	mu    sync.Mutex
	asked []*http.Request
	open  []string
}

// client connects to it.
func (m *inMemory) client(t *testing.T) *api.Client {
	t.Helper()
	c, err := api.NewClient(&api.Config{Address: "http://nomad.test", HttpClient: &http.Client{Transport: m}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	m.asked = append(m.asked, r)
	m.mu.Unlock()
	status, value := m.answer(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	var body io.Reader
	switch value := value.(type) {
	case error:
		return nil, value
	case io.Reader:
		body = value
	case string:
		body = strings.NewReader(value)
	default:
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		body = strings.NewReader(string(text))
	}
	m.mu.Lock()
	m.open = append(m.open, r.URL.Path)
	m.mu.Unlock()
	header := http.Header{"X-Nomad-Index": {"10"}, "X-Nomad-Lastcontact": {"0"}}
	if next, ok := value.(paged); ok {
		header.Set("X-Nomad-NextToken", next.token())
	}
	return &http.Response{StatusCode: status, Header: header, ContentLength: -1, Body: &answered{Reader: body, close: sync.OnceFunc(func() { m.closed(r.URL.Path) })}, Request: r}, nil
}

// paged is an answer that has a next page.
type paged []api.AllocationListStub

func (p paged) token() string { return "after-" + p[len(p)-1].ID }

func (m *inMemory) closed(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.Index(m.open, path)
	m.open = slices.Delete(m.open, at, at+1)
}

// requests are those so far, as METHOD PATH?QUERY with what tells them apart.
func (m *inMemory) requests() (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.asked {
		list = append(list, call(r))
	}
	return list
}

// notClosed are the paths whose answers are still open.
func (m *inMemory) notClosed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.open)
}

// answered is the body of an answer.
type answered struct {
	io.Reader
	close func()
}

func (a *answered) Close() error { a.close(); return nil }

// call names a request by what it is for.
func call(r *http.Request) string {
	name := r.Method + " " + r.URL.EscapedPath()
	for _, key := range []string{"lock-acquire", "lock-renew", "lock-release", "cas", "version", "next_token", "no_shutdown_delay"} {
		if q := r.URL.Query(); q.Has(key) {
			name += " " + strings.TrimSuffix(key+"="+q.Get(key), "=")
		}
	}
	if r.URL.Query().Get("filter") == endedAlone {
		name += " ended"
	}
	return name
}

// hang waits until whoever asks has had enough.
func hang(r *http.Request) (int, any) {
	<-r.Context().Done()
	return 0, context.Cause(r.Context())
}

// line is an event stream: what is written to it is read until whoever asks has had enough.
func line(r *http.Request) (io.Reader, *io.PipeWriter) {
	reader, writer := io.Pipe()
	context.AfterFunc(r.Context(), func() { writer.CloseWithError(context.Cause(r.Context())) })
	return reader, writer
}
