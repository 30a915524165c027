// SPDX-License-Identifier: MPL-2.0

package api

import (
	"net/http"
	"time"
)

// Alive is the answer of /healthz and /readyz.
type Alive struct {
	Status string `json:"status"`
	// AgeSeconds is how long ago the service last heard from Nomad.
	AgeSeconds *float64 `json:"age_seconds,omitempty"`
}

// healthz says that the process answers. Nothing outside of it counts: to
// restart the service does not bring Nomad back.
func (a *API) healthz(w http.ResponseWriter, r *http.Request) error {
	answer(w, http.StatusOK, Alive{Status: "alive"})
	return nil
}

// readyz says whether requests get answers that are worth something.
func (a *API) readyz(w http.ResponseWriter, r *http.Request) error {
	heard, err := a.Heard()
	if err != nil {
		return blind(err)
	}
	age := a.Now().Sub(heard)
	if age > a.StaleAfter {
		return problemf(http.StatusServiceUnavailable, "the service last heard from Nomad %s ago; check that Nomad has a leader and that the service's token is valid", age.Round(time.Second))
	}
	seconds := round(max(0, age.Seconds()))
	answer(w, http.StatusOK, Alive{Status: "ready", AgeSeconds: &seconds})
	return nil
}
