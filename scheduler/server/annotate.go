// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

// notes are what the submitter reads beside Nomad's own answer: everything for
// plan and validate, and what waits for a registration.
func notes(kind routeKind, decisions []admit.Decision) []string {
	var lines []string
	for _, d := range decisions {
		if d.Hold != nil {
			lines = append(lines, fmt.Sprintf("group %q waits for %s: %s", d.Group, d.Hold.Kind, d.Hold.Sentence))
		}
		if kind == registered {
			continue
		}
		for _, line := range d.Explanation {
			lines = append(lines, fmt.Sprintf("group %q: %s", d.Group, line))
		}
	}
	return lines
}

// annotate adds lines to the warnings of Nomad's answer, which the nomad
// command and the UI show, and the decisions in a field of their own, which
// they ignore. Every other value of the answer stays.
func annotate(resp *http.Response, lines []string, groups []Group) error {
	if resp.StatusCode >= 300 {
		return nil
	}
	text, err := readAnswer(resp)
	if err != nil {
		return fmt.Errorf("read Nomad's answer: %w", err)
	}
	changed, err := addNotes(text, lines, groups)
	if err != nil { // it is the answer all the same
		changed = text
	}
	resp.Body = io.NopCloser(bytes.NewReader(changed))
	resp.ContentLength = int64(len(changed))
	resp.Header.Set("Content-Length", strconv.Itoa(len(changed)))
	resp.TransferEncoding = nil
	return nil
}

// unchangedAt is the index at which a job was changed last that Nomad has taken as it had it already; 0:
// it is another version. Nomad makes the evaluation of a new version together with it, and says the
// index of both.
func unchangedAt(resp *http.Response) uint64 {
	if resp.StatusCode >= 300 {
		return 0
	}
	text, err := readAnswer(resp)
	var says struct{ JobModifyIndex, EvalCreateIndex uint64 }
	if err != nil || json.Unmarshal(text, &says) != nil || says.JobModifyIndex >= says.EvalCreateIndex {
		return 0
	}
	return says.JobModifyIndex
}

// readAnswer reads all of Nomad's answer, which can be read again, with the error if there was one.
func readAnswer(resp *http.Response) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, peer.MaxAnswer))
	if err != nil {
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(text), failing{err}))
		return nil, err
	}
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return text, nil
}

// failing is the rest of an answer that could not be read.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// GroupsField is the field of Nomad's answers to job submissions in which the
// service states its decision: a list of Group.
const GroupsField = "GPUGroups"

// addNotes appends lines to the field Warnings of a JSON object.
func addNotes(text []byte, lines []string, groups []Group) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("read Nomad's answer: %w", err)
	}
	var have string
	if raw := fields["Warnings"]; raw != nil {
		if err := json.Unmarshal(raw, &have); err != nil {
			return nil, fmt.Errorf("read Nomad's warnings: %w", err)
		}
	}
	if have != "" {
		lines = append([]string{have}, lines...)
	}
	var err error
	if fields["Warnings"], err = json.Marshal(strings.Join(lines, "\n")); err != nil {
		return nil, fmt.Errorf("write warnings: %w", err)
	}
	if fields[GroupsField], err = json.Marshal(groups); err != nil {
		return nil, fmt.Errorf("write decisions: %w", err)
	}
	return json.Marshal(fields)
}
