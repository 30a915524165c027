package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
)

// cluster serves the whole picture. Its entity tag changes with its content, so
// that a reader who asks often gets a few bytes unless something happened.
func (a *API) cluster(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r); err != nil {
		return err
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	return tagged(w, r, c)
}

// tagged answers with an entity tag, or 304 when the caller has the body.
func tagged(w http.ResponseWriter, r *http.Request, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "private, no-cache")
	w.Header().Set("Vary", "X-Nomad-Token, Authorization")
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	answer(w, http.StatusOK, json.RawMessage(text))
	return nil
}
