// SPDX-License-Identifier: MPL-2.0

package service

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/testca"
)

// secure is the configuration of a replica that has a certificate of each of two
// authorities: Nomad's, and that of people and replicas.
func secure(nomads, peoples *testca.Authority) string {
	toNomad, itsKey := nomads.Sign("scheduler")
	cert, key := peoples.Sign("gpu.example")
	return fmt.Sprintf(`
nomad {
  ca_file         = %q
  cert_file       = %q
  key_file        = %q
  tls_server_name = "server.global.nomad"
}
listen {
  cert_file      = %q
  key_file       = %q
  client_ca_file = %q
}
`, nomads.CAFile(), toNomad, itsKey, cert, key, peoples.CAFile())
}

// person is how a caller with a certificate reaches a replica.
func person(a *testca.Authority, name string) api.Config {
	cert, key := a.Sign(name)
	return api.Config{TLSConfig: &api.TLSConfig{CACert: a.CAFile(), ClientCert: cert, ClientKey: key}}
}

// TestTLS has certificates asked for by everybody: Nomad of the service, the
// service of people, and one replica of the other.
func TestTLS(t *testing.T) {
	t.Parallel()
	nomads, peoples, strangers := testca.New(t), testca.New(t), testca.New(t)
	agent, agentKey := nomads.Sign("server.global.nomad")
	client, clientKey := nomads.Sign("test")
	ctx, c := startWith(t, 1, cluster.Options{TLS: &cluster.TLS{
		CAFile: nomads.CAFile(), CertFile: agent, KeyFile: agentKey, ClientCertFile: client, ClientKeyFile: clientKey}})
	alice := person(peoples, "alice")
	first := serveWith(ctx, t, c, launch{nomad: c.URL, config: secure(nomads, peoples), client: alice})
	admitted(ctx, t, first, job{id: "one", meta: map[string]string{"gpu": "1G"}})
	second := serveWith(ctx, t, c, launch{nomad: c.URL, config: secure(nomads, peoples), client: alice})
	admitted(ctx, t, second, job{id: "passed-on", meta: map[string]string{"gpu": "1G"}})
	for _, id := range []string{"one", "passed-on"} {
		runs(ctx, t, c.API, id, 1)
	}
	if text := first.said(t); !strings.Contains(text, `"certificate":"alice"`) || !strings.Contains(text, `"via":"127.0.0.1:`) {
		t.Errorf("the audit log names neither alice nor the replica that passed her job on:\n%s", text)
	}

	mallory := person(strangers, "mallory")
	mallory.TLSConfig.CACert = peoples.CAFile()
	for name, row := range map[string]struct {
		client api.Config
		says   string
	}{
		"a certificate of others": {mallory, "unknown certificate authority"},
		"no certificate":          {api.Config{TLSConfig: &api.TLSConfig{CACert: peoples.CAFile()}}, "certificate required"},
		"another authority":       {api.Config{TLSConfig: &api.TLSConfig{CACert: strangers.CAFile()}}, "signed by unknown authority"},
	} {
		row.client.Address = first.URL
		if _, _, err := must(api.NewClient(&row.client)).Jobs().List(nil); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
	if status, text := get(ctx, t, strings.Replace(first.URL, "https", "http", 1)); status != http.StatusBadRequest || !strings.Contains(text, "HTTPS") {
		t.Errorf("plain HTTP: %d %s", status, text)
	}

	// A certificate that is renewed serves from the next connection on, and
	// neither side needs a signal.
	before := serial(t, first, peoples, alice)
	peoples.Sign("gpu.example")
	until(ctx, t, "serve with the renewed certificate", 20*time.Second, func() (bool, string) {
		return serial(t, first, peoples, alice) != before, before
	})
	nomads.Sign("scheduler")
	admitted(ctx, t, second, job{id: "renewed", meta: map[string]string{"gpu": "1G"}})

	// Who trusts another authority than Nomad's says so once, and is not ready.
	blind := serveWith(ctx, t, c, launch{nomad: c.URL, config: secure(strangers, peoples), client: alice})
	until(ctx, t, "say that Nomad's certificate is not trusted", 20*time.Second, func() (bool, string) {
		text := blind.said(t)
		return strings.Contains(text, "signed by unknown authority"), text
	})
	if _, err := blind.API.Raw().Query("/readyz", nil, nil); err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "authority") {
		t.Errorf("a replica that cannot hear Nomad is ready: %v", err)
	}
	doubleBooked(ctx, t, c.API)
}

// serial is the serial number of the certificate that a replica serves with.
func serial(t *testing.T, r *replica, a *testca.Authority, client api.Config) string {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(a.CAFile())))
	own, err := tls.LoadX509KeyPair(client.TLSConfig.ClientCert, client.TLSConfig.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.URL, "https://"), &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}
