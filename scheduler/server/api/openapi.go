// SPDX-License-Identifier: MPL-2.0

package api

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openapiDocument []byte

func (a *API) openapi(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "public, max-age=300")
	w.Write(openapiDocument) //nolint:errcheck // the client has gone
	return nil
}
