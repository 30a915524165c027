// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// A validation is told of mistakes in Nomad's own form, and of all that is not the job's with a
// status, as a registration is.
func TestTheFormOfARefusal(t *testing.T) {
	const plain, inForm = "text/plain; charset=utf-8", "application/json"
	for _, row := range []struct {
		path         string
		status, want int
		form         string
	}{
		{"/v1/validate/job", 422, 200, inForm}, {"/v1/validate/job", 499, 200, inForm}, {"/v1/validate/job", 500, 500, plain}, {"/v1/validate/job", 503, 503, plain},
		{"/v1/jobs", 422, 422, plain}, {"/v1/jobs", 500, 500, plain},
	} {
		s := newService(t, func(c *Config) {
			c.Decider = &deciding{err: &admit.Refusal{Status: row.status, Text: "no room for it"}}
		})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.http.URL+row.path, strings.NewReader(gpuJob("a", oneGPU)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if form := resp.Header.Get("Content-Type"); resp.StatusCode != row.want || form != row.form {
			t.Errorf("%s refused with %d is answered with %d as %s, want %d as %s", row.path, row.status, resp.StatusCode, form, row.want, row.form)
		}
		if logged := strings.Contains(s.log.String(), "admission failed"); logged != (row.status >= 500) {
			t.Errorf("%s refused with %d: logged %v", row.path, row.status, logged)
		}
	}
}

// observed is a body that looks at the deadline of its own reading.
type observed struct {
	read func() (int, error)
}

func (o observed) Read([]byte) (int, error) { return o.read() }
func (o observed) Close() error             { return nil }

// A part of a body has a deadline while it is read, which stays where the reading failed for it: a
// failure then is the client's, who was too slow, also where it comes in another form.
func TestABodyHasADeadlineWhileItIsRead(t *testing.T) {
	until := time.Now().Add(time.Hour)
	for name, row := range map[string]struct {
		err  error
		left bool
	}{"it is read": {nil, false}, "it breaks": {errors.New("reset"), false}, "it is late": {fmt.Errorf("read: %w", os.ErrDeadlineExceeded), true}} {
		b := &timedBody{control: http.NewResponseController(httptest.NewRecorder()), until: until}
		b.ReadCloser = observed{func() (int, error) {
			if at := b.deadline.Load(); at != until.UnixNano() {
				t.Errorf("%s: the deadline is %d, want %d", name, at, until.UnixNano())
			}
			return 3, row.err
		}}
		n, err := b.Read(make([]byte, 9))
		if n != 3 || (err != nil) != (row.err != nil) || errors.Is(err, errSlow) != row.left || (b.deadline.Load() != 0) != row.left {
			t.Errorf("%s: %d, %v, then the deadline is %d", name, n, err, b.deadline.Load())
		}
	}
}

// A log that cannot be closed is told of; a file that was opened anew is used nevertheless.
func TestALogThatCannotBeClosedIsToldOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.json")
	l, err := OpenLogFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reopened: %v", err)
	}
	if _, err := l.Write([]byte("one\n")); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed again: %v", err)
	}
}
