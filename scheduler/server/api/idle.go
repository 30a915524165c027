// SPDX-License-Identifier: MPL-2.0

package api

import (
	"net/http"
	"time"
)

// idle says who holds GPUs and does not use them: for as long as their queues allow, or for
// as long as the caller says.
func (a *API) idle(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r, "for"); err != nil {
		return err
	}
	var after time.Duration
	if text := r.URL.Query().Get("for"); text != "" {
		var err error
		if after, err = time.ParseDuration(text); err != nil || after <= 0 {
			return problemf(http.StatusBadRequest, "for: %q is not valid (how long it has not been used, such as 30m)", text)
		}
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, c.IdleReport(after))
	return nil
}
