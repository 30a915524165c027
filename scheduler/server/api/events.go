// SPDX-License-Identifier: MPL-2.0

package api

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Past tells the actions on a job, newest first, of all replicas; *leader.Decider does.
type Past interface {
	Events(ctx context.Context, key nomad.JobKey) ([]view.Event, error)
}

// JobEvents is the answer of /events.
type JobEvents struct {
	Namespace string       `json:"namespace"`
	JobID     string       `json:"job_id"`
	Events    []view.Event `json:"events"` // newest first
}

// events lists the actions on one job: for whom it was stopped, held or moved, and why. It need not be
// registered any more.
func (a *API) events(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r, "job", "namespace"); err != nil {
		return err
	}
	query := r.URL.Query()
	key := nomad.JobKey{Namespace: cmp.Or(query.Get("namespace"), "default"), ID: query.Get("job")}
	if key.ID == "" {
		return problemf(http.StatusBadRequest, "job: which one? for example ?job=train&namespace=default")
	}
	if err := a.Gate.MayReadNamespace(r.Context(), nomad.CallerToken(r.Header), key.Namespace); err != nil {
		return err
	}
	list, err := a.Past.Events(r.Context(), key)
	if err != nil {
		return problemf(http.StatusBadGateway, "%v", err)
	}
	visible := map[string]bool{key.Namespace: true}
	for _, e := range list {
		namespace, _, found := strings.Cut(e.For, "/")
		if _, known := visible[namespace]; known || !found {
			continue
		}
		if visible[namespace], err = a.visible(r, namespace); err != nil {
			return err
		}
	}
	list = view.RedactEvents(list, func(namespace string) bool { return visible[namespace] })
	return Tagged(w, r, JobEvents{key.Namespace, key.ID, list})
}
