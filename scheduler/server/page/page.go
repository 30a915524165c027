// SPDX-License-Identifier: MPL-2.0

// Package page is the placement service's web page: every node, GPU and slice,
// who holds it, what waits and why.
//
//	/gpu/            the page: one HTML file, one style sheet, one script
//	/gpu/data        its data, as JSON; asked for every two seconds
//
// The files have no names or figures in them and need no token; the data does,
// the reader's Nomad token, which the script sends. The script builds elements
// and sets their text, it never makes HTML out of data: a job's name is
// whatever a user chose to type.
package page

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

//go:embed assets
var assets embed.FS

// Path is where the page is, below the service's address.
const Path = "/gpu/"

// policy lets the page load its own files and nothing else, and lets only
// pages of the same origin frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// Guard serves the picture, as far as the caller may see it.
type Guard interface {
	Guarded(serve func(w http.ResponseWriter, r *http.Request, c *view.Cluster) error) http.Handler
}

// Register adds the page's handlers with a function such as http.ServeMux's
// Handle. The guard hands out the pictures; now is the clock.
func Register(handle func(pattern string, h http.Handler), guard Guard, now func() time.Time) error {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		return fmt.Errorf("open the page's files: %w", err)
	}
	handle("GET "+Path, http.StripPrefix(Path, headers(http.FileServerFS(files))))
	handle("GET "+Path+"data", guard.Guarded(func(w http.ResponseWriter, r *http.Request, c *view.Cluster) error {
		// What changes with every picture stays out of the body, or no body
		// would ever be the same.
		w.Header().Set("X-View-Age", strconv.FormatFloat(max(0, now().Sub(c.Synced).Seconds()), 'f', 1, 64))
		w.Header().Set("X-View-Now", now().UTC().Format(time.RFC3339Nano))
		return api.Tagged(w, r, dataOf(c))
	}))
	handle("GET /gpu", http.RedirectHandler(Path, http.StatusMovedPermanently))
	return nil
}

func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		// The files come with the program: after an upgrade the old ones must
		// not be shown.
		h.Set("Cache-Control", "no-cache")
		next.ServeHTTP(w, r)
	})
}
