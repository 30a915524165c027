// SPDX-License-Identifier: MPL-2.0

package config

import "net/url"

type telemetryBlock struct {
	Traces *tracesBlock `hcl:"traces,block"`
}

type tracesBlock struct {
	Endpoint string   `hcl:"endpoint"`
	CAFile   *string  `hcl:"ca_file"`
	Ratio    *float64 `hcl:"sample_ratio"`
}

// tracesPath is where collectors take traces over HTTP.
const tracesPath = "/v1/traces"

func (b *tracesBlock) apply(t *Traces, r *reader) {
	u, err := url.Parse(b.Endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		r.complain("telemetry.traces.endpoint: not valid (the URL of an OTLP receiver over HTTP, such as \"http://127.0.0.1:4318\")")
		return
	case u.User != nil || u.RawQuery != "":
		r.complain("telemetry.traces.endpoint: a user, a password or a query in the URL is not valid (headers in the environment variable OTEL_EXPORTER_OTLP_HEADERS)")
		return
	case u.Path == "" || u.Path == "/":
		u.Path = tracesPath
	}
	t.Endpoint = u.String()
	set(&t.CAFile, b.CAFile)
	if t.CAFile != "" && u.Scheme != "https" {
		r.complain("telemetry.traces.ca_file: %q is not valid with an endpoint that is not https", t.CAFile)
	}
	if b.Ratio == nil {
		return
	}
	if !(*b.Ratio >= 0 && *b.Ratio <= 1) {
		r.complain("telemetry.traces.sample_ratio: %g is not valid (0 to 1)", *b.Ratio)
		return
	}
	t.Ratio = *b.Ratio
}
