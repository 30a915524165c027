// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// Actor carries out what was decided: it changes jobs and stops allocs.
type Actor struct {
	api *api.Client
}

// NewActor acts through a connection to Nomad.
func NewActor(c *api.Client) *Actor { return &Actor{api: c} }

// registration is the body of a job registration. It is only taken if the job
// is still as it was read, and keeps the source that the user submitted.
type registration struct {
	Job            any
	EnforceIndex   bool
	JobModifyIndex uint64
	Submission     json.RawMessage `json:",omitempty"`
}

// Read returns a job as the body of a registration that would leave it as it
// is.
func (a *Actor) Read(ctx context.Context, key JobKey) ([]byte, error) {
	q := (&api.QueryOptions{Namespace: key.Namespace}).WithContext(ctx)
	path := "/v1/job/" + url.PathEscape(key.ID)
	var job json.RawMessage
	if _, err := a.api.Raw().Query(path, &job, q); err != nil {
		return nil, fmt.Errorf("read job %q: %w", key, err)
	}
	var head struct{ JobModifyIndex, Version uint64 }
	var fields map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(job, &head), json.Unmarshal(job, &fields)); err != nil {
		return nil, fmt.Errorf("decode job %q: %w", key, err)
	}
	body := registration{Job: job, EnforceIndex: true, JobModifyIndex: head.JobModifyIndex}
	if tag, found := fields["VersionTag"]; found && string(tag) != "null" {
		// The author gave it to one version of the job, and Nomad would give it to the next too.
		delete(fields, "VersionTag")
		body.Job = fields
	}
	var source json.RawMessage
	q.Params = map[string]string{"version": strconv.FormatUint(head.Version, 10)}
	if _, err := a.api.Raw().Query(path+"/submission", &source, q); err == nil {
		body.Submission = source // a job without a source is common
	}
	return json.Marshal(body)
}

// Register submits a body that Read made and the caller changed. It fails with
// ErrConflict when the job is not as it was read any more.
func (a *Actor) Register(ctx context.Context, key JobKey, body []byte) error {
	q := (&api.WriteOptions{Namespace: key.Namespace}).WithContext(ctx)
	_, err := a.api.Raw().Write("/v1/jobs", json.RawMessage(body), nil, q)
	switch {
	case err == nil:
		return nil
	case enforceIndexFailed(err):
		return fmt.Errorf("revise job %q: %w", key, ErrConflict)
	}
	return fmt.Errorf("revise job %q: %w", key, err)
}

// Scale sets counts of a job that is as it was at an index, one after the other. It fails with
// ErrConflict as Register does.
func (a *Actor) Scale(ctx context.Context, key JobKey, index uint64, steps []admit.Scaling) error {
	q := (&api.WriteOptions{Namespace: key.Namespace}).WithContext(ctx)
	for _, s := range steps {
		count := int64(s.Count)
		r := api.ScalingRequest{Count: &count, Target: map[string]string{"Job": key.ID, "Group": s.Group}, JobModifyIndex: index}
		var done api.JobRegisterResponse
		_, err := a.api.Raw().Write("/v1/job/"+url.PathEscape(key.ID)+"/scale", r, &done, q)
		switch {
		case enforceIndexFailed(err):
			return fmt.Errorf("scale job %q: %w", key, ErrConflict)
		case err != nil:
			return fmt.Errorf("scale job %q: %w", key, err)
		}
		index = done.JobModifyIndex
	}
	return nil
}

// enforceIndexFailed recognizes Nomad's refusal of a stale index, which has no
// status of its own.
func enforceIndexFailed(err error) bool {
	return status(err) == http.StatusConflict ||
		status(err) == http.StatusInternalServerError && strings.Contains(err.Error(), api.RegisterEnforceIndexErrPrefix)
}

// Stop ends an alloc, at once without its shutdown_delay. Nomad makes a replacement where its job allows
// one.
func (a *Actor) Stop(ctx context.Context, allocID string, atOnce bool) error {
	q := (&api.WriteOptions{}).WithContext(ctx)
	path := "/v1/allocation/" + url.PathEscape(allocID) + "/stop"
	if atOnce {
		path += "?no_shutdown_delay=true"
	}
	if _, err := a.api.Raw().Write(path, nil, nil, q); err != nil {
		return fmt.Errorf("stop alloc %q: %w", allocID, err)
	}
	return nil
}

// Allocs reads what occupies a node now, and Nomad's index of that.
func (a *Actor) Allocs(ctx context.Context, nodeID string) ([]*Alloc, uint64, error) {
	q := query(ctx, "resources", "true", "task_states", "false")
	q.Filter = fmt.Sprintf("NodeID == %q and (%s)", nodeID, occupying)
	stubs, meta, err := a.api.Allocations().List(q)
	if err != nil {
		return nil, 0, fmt.Errorf("list allocations of node %q: %w", nodeID, err)
	}
	allocs := make([]*Alloc, len(stubs))
	for i, s := range stubs {
		allocs[i] = NewAlloc(s)
	}
	return allocs, meta.LastIndex, nil
}
