// SPDX-License-Identifier: MPL-2.0

package service

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
)

// TestNomadsTokensDecide asks a Nomad with ACLs what tokens may do.
func TestNomadsTokensDecide(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 0, cluster.Options{ACLs: true})
	if _, err := c.API.Namespaces().Register(&api.Namespace{Name: "research"}, nil); err != nil {
		t.Fatal(err)
	}
	gate, err := rest.NewNomadGate(api.Config{Address: c.URL})
	if err != nil {
		t.Fatal(err)
	}
	reader := token(t, c.API, "reader", `node { policy = "read" } namespace "research" { policy = "read" }`)
	writer := token(t, c.API, "writer", `namespace "research" { policy = "write" }`)
	registrar := token(t, c.API, "registrar", `namespace "research" { capabilities = ["register-job"] }`)
	for _, row := range []struct {
		name, token            string
		read, research, submit bool
	}{
		{name: "reader", token: reader, read: true, research: true},
		{name: "writer", token: writer, research: true, submit: true},
		{name: "registrar", token: registrar, submit: true},
		{name: "anonymous"},
		{name: "made up", token: "6e3b2a52-aaaa-bbbb-cccc-0123456789ab"},
	} {
		for what, got := range map[string]struct {
			err  error
			want bool
		}{
			"read nodes":              {gate.MayRead(ctx, row.token), row.read},
			"read research":           {gate.MayReadNamespace(ctx, row.token, "research"), row.research},
			"read default":            {gate.MayReadNamespace(ctx, row.token, "default"), false},
			"submit to research":      {gate.MaySubmit(ctx, row.token, "research"), row.submit},
			"submit to default":       {gate.MaySubmit(ctx, row.token, "default"), false},
			"submit to no such place": {gate.MaySubmit(ctx, row.token, "nowhere"), false},
		} {
			if (got.err == nil) != got.want {
				t.Errorf("%s, %s: %v, want %v", row.name, what, got.err, got.want)
			}
		}
	}
	jobs, _, err := c.API.Jobs().List(&api.QueryOptions{Namespace: "*"})
	if err != nil || len(jobs) != 0 {
		t.Errorf("asking left %d jobs behind, error %v", len(jobs), err)
	}
}
