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
// command and the UI show. Every other byte of the answer stays.
func annotate(resp *http.Response, lines []string) error {
	if len(lines) == 0 || resp.StatusCode >= 300 {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("read Nomad's answer: %w", err)
	}
	_ = resp.Body.Close()
	changed, err := addWarnings(text, lines)
	if err != nil { // it is the answer all the same
		changed = text
	}
	resp.Body = io.NopCloser(bytes.NewReader(changed))
	resp.ContentLength = int64(len(changed))
	resp.Header.Set("Content-Length", strconv.Itoa(len(changed)))
	resp.TransferEncoding = nil
	return nil
}

// addWarnings appends lines to the field Warnings of a JSON object.
func addWarnings(text []byte, lines []string) ([]byte, error) {
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
	all := strings.Join(lines, "\n")
	if have != "" {
		all = have + "\n" + all
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("write warnings: %w", err)
	}
	fields["Warnings"] = raw
	return json.Marshal(fields)
}
