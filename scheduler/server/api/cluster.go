// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// cluster serves the whole picture, or pages of it: all that is not a node stands on the first.
func (a *API) cluster(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r, "per_page", "next"); err != nil {
		return err
	}
	per, next := r.URL.Query().Get("per_page"), r.URL.Query().Get("next")
	size, err := strconv.Atoi(per)
	switch {
	case per == "" && next != "":
		return problemf(http.StatusBadRequest, "next: goes with per_page alone")
	case per != "" && (err != nil || size < 1):
		return problemf(http.StatusBadRequest, "per_page: %q is not valid (a whole number of nodes from 1)", per)
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	if per != "" {
		c = pageOf(c, next, size)
	}
	return Tagged(w, r, c)
}

// pageOf are so many nodes of a picture, from an ID on. Their order is that of the IDs, so that one that
// comes or goes between two pages takes no other with it.
func pageOf(c *view.Cluster, from string, size int) *view.Cluster {
	nodes := slices.SortedFunc(slices.Values(c.Nodes), func(x, y view.Node) int { return strings.Compare(x.ID, y.ID) })
	page := *c
	if from != "" {
		page = view.Cluster{At: c.At, Index: c.Index, Synced: c.Synced, Leader: c.Leader, Leading: c.Leading, DryRun: c.DryRun, MinRunS: c.MinRunS}
	}
	first, _ := slices.BinarySearchFunc(nodes, from, func(n view.Node, id string) int { return strings.Compare(n.ID, id) })
	nodes = nodes[first:]
	if page.Next = ""; len(nodes) > size {
		page.Next = nodes[size].ID
	}
	page.Nodes = nodes[:min(size, len(nodes))]
	return &page
}

// Guarded serves an answer made of the picture, as far as the caller may see it;
// the API answers when there is none, or when the caller may not read at all.
func (a *API) Guarded(serve func(w http.ResponseWriter, r *http.Request, c *view.Cluster) error) http.Handler {
	return a.wrap(route{handle: func(a *API, w http.ResponseWriter, r *http.Request) error {
		c, err := a.picture(r)
		if err != nil {
			return err
		}
		return serve(w, r, c)
	}})
}

// smallBody is not worth compressing.
const smallBody = 2048

// Tagged answers with JSON and an entity tag, or 304 when the caller has the
// body already: whoever asks often gets a few bytes unless something happened.
func Tagged(w http.ResponseWriter, r *http.Request, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	header := w.Header()
	header.Set("ETag", tag)
	header.Set("Cache-Control", "private, no-cache")
	header.Set("Vary", "X-Nomad-Token, Authorization, Accept-Encoding")
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	if len(text) > smallBody && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		text = compress(text)
	}
	w.Write(text) //nolint:errcheck // the client has gone
	return nil
}

func compress(text []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(text) //nolint:errcheck // a buffer takes everything
	z.Close()     //nolint:errcheck // likewise
	return b.Bytes()
}
