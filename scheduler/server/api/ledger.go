// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Books tell past holdings and use.
type Books interface {
	// Entries hands over what lies between two times.
	Entries(ctx context.Context, from, to time.Time, each func(*ledger.Entry)) error
	// Prices are the price list, and its currency.
	Prices() (ledger.Prices, string)
}

// Advices is the answer of /ledger/advice.
type Advices struct {
	From   time.Time       `json:"from"`
	To     time.Time       `json:"to"`
	Advice []ledger.Advice `json:"advice"`
}

// ErrLedgerAway is wrapped where the ledger cannot be read because its store is away.
var ErrLedgerAway = errors.New("the ledger's disk or database is full or away; decisions go on, and what is held meanwhile is entered later")

var errNoLedger = problemf(http.StatusNotFound, "this replica keeps no ledger; the operator can say where: ledger { path = \"/var/lib/nomad-gpu-scheduler/ledger\" }")

// report serves past holdings and use, as JSON or CSV.
func (a *API) report(w http.ResponseWriter, r *http.Request) error {
	if a.Books == nil {
		return errNoLedger
	}
	if err := onlyQuery(r, "from", "to", "month", "by", "format"); err != nil {
		return err
	}
	query := r.URL.Query()
	by, err := ledger.ParseGrouping(query.Get("by"))
	if err != nil {
		return problemf(http.StatusBadRequest, "%v", err)
	}
	format := query.Get("format")
	if format != "" && format != "json" && format != "csv" {
		return problemf(http.StatusBadRequest, "format: %q is not valid (json, csv)", format)
	}
	from, to, err := a.span(query)
	if err != nil {
		return err
	}
	prices, currency := a.Books.Prices()
	rows := ledger.NewBuilder(by, prices)
	if err := a.entries(r, from, to, rows.Add); err != nil {
		return err
	}
	report := rows.Report(from, to, currency)
	if format != "csv" {
		answer(w, http.StatusOK, report)
		return nil
	}
	var text bytes.Buffer
	if err := report.WriteCSV(&text); err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", "text/csv; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Disposition", "attachment; filename=\"gpus-by-"+string(by)+".csv\"")
	w.Write(text.Bytes()) //nolint:errcheck // the client has gone
	return nil
}

// advice serves which tasks ask for more than they use.
func (a *API) advice(w http.ResponseWriter, r *http.Request) error {
	if a.Books == nil {
		return errNoLedger
	}
	if err := onlyQuery(r, "from", "to", "month"); err != nil {
		return err
	}
	from, to, err := a.span(r.URL.Query())
	if err != nil {
		return err
	}
	adviser := ledger.NewAdviser()
	err = a.entries(r, from, to, func(e *ledger.Entry) {
		if e.Namespace != view.Hidden {
			adviser.Add(e)
		}
	})
	if err == nil {
		answer(w, http.StatusOK, Advices{from, to, adviser.Advise()})
	}
	return err
}

// entries hands over past holdings, without names that the caller may not see.
func (a *API) entries(r *http.Request, from, to time.Time, each func(*ledger.Entry)) error {
	visible := map[string]bool{}
	var failed error
	err := a.Books.Entries(r.Context(), from, to, func(e *ledger.Entry) {
		if _, asked := visible[e.Namespace]; !asked && failed == nil {
			visible[e.Namespace], failed = a.visible(r, e.Namespace)
		}
		if !visible[e.Namespace] {
			e.Alloc, e.Task, e.Namespace, e.Job, e.Parent, e.Group = "", "", view.Hidden, view.Hidden, "", ""
		}
		each(e)
	})
	return errors.Join(failed, err)
}

// defaultSpan is the time of a report that names none.
const defaultSpan = 30 * 24 * time.Hour

// span reads which time is asked about. It ends now where it would end later.
func (a *API) span(query url.Values) (from, to time.Time, err error) {
	now := a.Now().UTC()
	from, to = now.Add(-defaultSpan), now
	if month := query.Get("month"); month != "" {
		if from, err = time.Parse("2006-01", month); err != nil || query.Has("from") || query.Has("to") {
			return from, to, problemf(http.StatusBadRequest, "month: %q is not valid (a month such as 2026-10, without from and to)", month)
		}
		to = from.AddDate(0, 1, 0)
	}
	for _, end := range []struct {
		name string
		at   *time.Time
	}{{"from", &from}, {"to", &to}} {
		text := query.Get(end.name)
		if text == "" {
			continue
		}
		if *end.at, err = time.Parse(time.DateOnly, text); err != nil {
			if *end.at, err = time.Parse(time.RFC3339, text); err != nil {
				return from, to, problemf(http.StatusBadRequest, "%s: %q is not valid (a day such as 2026-10-01, or a time such as 2026-10-01T12:00:00Z)", end.name, text)
			}
		}
	}
	if to.After(now) {
		to = now
	}
	if !from.Before(to) {
		return from, to, problemf(http.StatusBadRequest, "from: %s is not valid (a time before %s)", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	return from, to, nil
}
