// SPDX-License-Identifier: MPL-2.0

package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

type ledgerBlock struct {
	Path     *string      `hcl:"path"`
	Postgres *string      `hcl:"postgres"`
	Keep     *string      `hcl:"keep"`
	MaxSize  *int         `hcl:"max_size_mb"`
	Measure  *bool        `hcl:"measure"`
	Currency *string      `hcl:"currency"`
	Prices   []priceBlock `hcl:"price,block"`
}

type priceBlock struct {
	For     string   `hcl:"for,label"`
	From    *string  `hcl:"from"`
	GPUHour *float64 `hcl:"gpu_hour"`
	GiBHour *float64 `hcl:"gib_hour"`
}

func (b *ledgerBlock) apply(c *Config, r *reader) {
	l := &c.Ledger
	set(&l.Path, b.Path)
	if l.Path != "" && !filepath.IsAbs(l.Path) {
		r.complain("ledger.path: %q is not valid (an absolute path, or \"\" for no ledger)", l.Path)
	}
	if b.Postgres != nil {
		b.database(l, r)
	}
	r.duration("ledger.keep", &l.Keep, b.Keep, 24*time.Hour)
	mb := int(l.MaxBytes >> 20)
	r.positive("ledger.max_size_mb", &mb, b.MaxSize)
	l.MaxBytes = int64(mb) << 20
	set(&l.Measure, b.Measure)
	set(&l.Currency, b.Currency)
	known := map[ledger.Price]bool{}
	for _, p := range b.Prices {
		price := p.read(r)
		when := ledger.Price{For: price.For, From: price.From}
		if known[when] {
			r.complain("ledger.price %q: there are two from the same day on", p.For)
		}
		known[when] = true
		c.Prices = append(c.Prices, price)
	}
}

// database takes the URL of a database. A password does not stand in it: the file is read by
// many.
func (b *ledgerBlock) database(l *Ledger, r *reader) {
	u, err := url.Parse(*b.Postgres)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		r.complain("ledger.postgres: not valid (a URL such as \"postgres://ledger@db.example/gpus?sslmode=verify-full\")")
		return
	}
	if _, given := u.User.Password(); given || u.Query().Has("password") {
		r.complain("ledger.postgres: a password in the URL is not valid (a file that PGPASSFILE names, or PGPASSWORD)")
		return
	}
	if mode := u.Query().Get("sslmode"); mode != "" && !slices.Contains(sslModes, mode) {
		r.complain("ledger.postgres: sslmode: %q is not valid (%s)", mode, strings.Join(sslModes, ", "))
		return
	}
	if b.Path != nil && *b.Path != "" {
		r.complain("ledger: path and postgres exclude each other")
	}
	l.Postgres, l.Path = *b.Postgres, ""
}

// sslModes are those that the driver of the database has.
var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// dearest bounds prices; it only catches slips.
const dearest = 1_000_000

func (b *priceBlock) read(r *reader) ledger.Price {
	p := ledger.Price{For: b.For}
	if b.For == "" {
		r.complain("ledger.price: \"\" is not valid (a GPU type such as \"H100\", a MIG profile, or %q for all others)", ledger.Any)
	}
	for _, one := range []struct {
		key  string
		from *float64
		to   *int64
	}{{"gpu_hour", b.GPUHour, &p.GPUHour}, {"gib_hour", b.GiBHour, &p.GiBHour}} {
		switch {
		case one.from == nil:
		case *one.from < 0 || *one.from > dearest:
			r.complain("ledger.price %q: %s: %g is not valid (0 to %d)", b.For, one.key, *one.from, int64(dearest))
		default:
			*one.to = int64(*one.from*1e6 + 0.5)
		}
	}
	if b.GPUHour == nil && b.GiBHour == nil {
		r.complain("ledger.price %q: neither gpu_hour nor gib_hour is set", b.For)
	}
	if b.From != nil {
		day, err := time.Parse(time.DateOnly, *b.From)
		if err != nil {
			r.complain("ledger.price %q: from: %q is not valid (a day, such as \"2026-10-01\")", b.For, *b.From)
		}
		p.From = day
	}
	return p
}
