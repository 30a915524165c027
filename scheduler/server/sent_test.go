// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// Lines are added to the warnings of Nomad's answer, and the decisions beside them; all else
// stays, and what is no answer of that kind stays as it is.
func TestNotesAreAddedToAnswers(t *testing.T) {
	groups := []Group{{Group: "g", Ask: "1", Count: 2}}
	for name, row := range map[string]struct {
		text, warnings string
		asItIs         bool
	}{
		"no warnings":     {`{"Index":18446744073709551615,"EvalID":"e"}`, "one\ntwo", false},
		"none yet":        {`{"Index":18446744073709551615,"EvalID":"e","Warnings":""}`, "one\ntwo", false},
		"some":            {`{"Index":18446744073709551615,"EvalID":"e","Warnings":"zero"}`, "zero\none\ntwo", false},
		"null":            {`{"Index":18446744073709551615,"EvalID":"e","Warnings":null}`, "one\ntwo", false},
		"of another kind": {`{"Index":18446744073709551615,"Warnings":[]}`, "", true},
		"another answer":  {`[]`, "", true},
		"one that is not": {`{`, "", true},
	} {
		body := &closes{Reader: strings.NewReader(row.text)}
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, ContentLength: -1, TransferEncoding: []string{"chunked"}}
		if err := annotate(resp, []string{"one", "two"}, groups); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || !body.closed || resp.ContentLength != int64(len(text)) || resp.Header.Get("Content-Length") != strconv.Itoa(len(text)) || resp.TransferEncoding != nil {
			t.Errorf("%s: closed %v, length %d of %d, %v", name, body.closed, resp.ContentLength, len(text), err)
		}
		if row.asItIs {
			if string(text) != row.text {
				t.Errorf("%s: %s", name, text)
			}
			continue
		}
		var got struct {
			Index     uint64
			EvalID    string
			Warnings  string
			GPUGroups []Group
		}
		if err := json.Unmarshal(text, &got); err != nil || got.Index != 1<<64-1 || got.EvalID != "e" || got.Warnings != row.warnings || len(got.GPUGroups) != 1 || got.GPUGroups[0].Count != 2 {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

// closes is a body that tells when it is given back, and fails after its text where it is to.
type closes struct {
	io.Reader
	fails  error
	closed bool
}

func (c *closes) Read(into []byte) (int, error) {
	n, err := c.Reader.Read(into)
	if err == io.EOF && c.fails != nil {
		err = c.fails
	}
	return n, err
}

func (c *closes) Close() error { c.closed = true; return nil }

// A refusal of Nomad stays as it came, and an answer that breaks off is an error.
func TestWhatIsNotAnnotated(t *testing.T) {
	refusal := &closes{Reader: strings.NewReader("no")}
	if err := annotate(&http.Response{StatusCode: http.StatusMultipleChoices, Body: refusal}, []string{"one"}, nil); err != nil || refusal.closed {
		t.Errorf("a refusal: %v", err)
	}
	broken := errors.New("it breaks off")
	if err := annotate(&http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: &closes{Reader: strings.NewReader("{"), fails: broken}}, nil, nil); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// What people read beside the answer: why a group waits, and of a dry run everything.
func TestWhatPeopleReadBesideAnAnswer(t *testing.T) {
	decisions := []admit.Decision{
		{Group: "g", Hold: &admit.Hold{Kind: "quota", Sentence: "full"}, Explanation: []string{"a", "b"}},
		{Group: "h", Explanation: []string{"c"}},
	}
	waits := `group "g" waits for quota: full`
	if got := notes(registered, decisions); !slices.Equal(got, []string{waits}) {
		t.Errorf("of a registration: %q", got)
	}
	if got := notes(planned, decisions); !slices.Equal(got, []string{waits, `group "g": a`, `group "g": b`, `group "h": c`}) {
		t.Errorf("of a plan: %q", got)
	}
}

// Nomad hears who asked, through however many proxies, with the query as it was written; an answer
// that is read here comes uncompressed.
func TestWhatNomadIsSent(t *testing.T) {
	s := newService(t, nil)
	for name, row := range map[string]struct {
		method, path, body, encoding string
	}{
		"a job":         {"PUT", "/v1/jobs?region=global&x=a%2Fb;c", gpuJob("a", oneGPU), "identity"},
		"a plain job":   {"PUT", "/v1/jobs?region=global&x=a%2Fb;c", `{"Job":{"ID":"b"}}`, "gzip"},
		"anything else": {"GET", "/v1/nodes?region=global&x=a%2Fb;c", "", "gzip"},
	} {
		if status, text := s.do(t, row.method, row.path, row.body, "X-Forwarded-For", "203.0.113.7", "X-Nomad-Token", goodToken); status != 200 && row.method == "PUT" {
			t.Fatalf("%s: %d %s", name, status, text)
		}
		s.nomad.mu.Lock()
		var sent call
		for _, one := range s.nomad.calls {
			if one.path != "/v1/acl/token/self" {
				sent = one
			}
		}
		s.nomad.mu.Unlock()
		if got := sent.header.Get("X-Forwarded-For"); got != "203.0.113.7, 127.0.0.1" {
			t.Errorf("%s: it came from %q", name, got)
		}
		if sent.query != "region=global&x=a%2Fb;c" || sent.header.Get("X-Nomad-Token") != goodToken || sent.header.Get("Accept-Encoding") != row.encoding {
			t.Errorf("%s: sent %q, %v", name, sent.query, sent.header)
		}
	}
}

// A hold changes the job: a scaling that is bound to its index is bound to the new one.
func TestAScalingIsBoundToWhatTheHoldLeft(t *testing.T) {
	var s *service
	s = newService(t, func(c *Config) {
		c.Hold = func(context.Context, string, string, string, admit.Hold) error {
			s.nomad.mu.Lock()
			defer s.nomad.mu.Unlock()
			s.nomad.jobs["/v1/job/a"] = strings.Replace(s.nomad.jobs["/v1/job/a"], `"JobModifyIndex":7`, `"JobModifyIndex":9`, 1)
			return nil
		}
	})
	s.nomad.jobs["/v1/job/a"] = registeredJob("full", 0)
	for sent, want := range map[string]string{`{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":7}`: `"JobModifyIndex":9`, `{"Count":2,"Target":{"Group":"g"}}`: `{"Count":2,"Target":{"Group":"g"}}`} {
		s.nomad.mu.Lock()
		s.nomad.jobs["/v1/job/a"] = registeredJob("full", 0)
		s.nomad.mu.Unlock()
		status, said := s.do(t, http.MethodPut, "/v1/job/a/scale", sent)
		if last := s.nomad.last().body; status != 200 || !strings.Contains(last, want) {
			t.Errorf("%d %s; sent was %s, want %s", status, said, last, want)
		}
	}
}

// Each record is counted, with its version written, on a line of its own.
func TestRecordsAreCounted(t *testing.T) {
	var out bytes.Buffer
	a := NewAudit(&out)
	if err := a.Write(Record{Action: "uncounted"}); err != nil {
		t.Fatal(err)
	}
	var counted []string
	a.Count = func(r Record) { counted = append(counted, r.Action) }
	for _, action := range []string{"one", "two"} {
		if err := a.Write(Record{Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(out.String(), "\n")
	if !slices.Equal(counted, []string{"one", "two"}) || len(lines) != 4 || lines[3] != "" {
		t.Errorf("counted %v, wrote %q", counted, lines)
	}
	for _, line := range lines[:3] {
		if !strings.Contains(line, `"v":`+strconv.Itoa(AuditVersion)) {
			t.Errorf("without its version: %s", line)
		}
	}
	full := errors.New("no space")
	if err := NewAudit(fails{full}).Write(Record{}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

type fails struct{ err error }

func (f fails) Write([]byte) (int, error) { return 0, f.err }
