// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/testca"
)

// files are the files of a new certificate that the authority signed.
func files(a *testca.Authority, name string) TLSFiles {
	cert, key := a.Sign(name)
	return TLSFiles{CertFile: cert, KeyFile: key, CAFile: a.CAFile()}
}

func serverTLS(t *testing.T, f TLSFiles) *tls.Config {
	t.Helper()
	c, err := ServerTLS(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func clientTLS(t *testing.T, f TLSFiles) *tls.Config {
	t.Helper()
	c, err := ClientTLS(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMutualTLS has certificates asked for on both sides of the service, and
// the client's name in the audit log.
func TestMutualTLS(t *testing.T) {
	a := testca.New(t)
	nomad := &fakeNomad{}
	upstream := httptest.NewUnstartedServer(nomad)
	upstream.TLS = serverTLS(t, files(a, "server.global.nomad"))
	upstream.StartTLS()
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	toNomad := files(a, "scheduler")
	toNomad.ServerName = "server.global.nomad"
	server, audit := startTLS(t, address, clientTLS(t, toNomad), serverTLS(t, files(a, "gpu.example")))

	register := func(c *tls.Config) (int, error) {
		transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Post(server+"/v1/jobs", "", strings.NewReader(gpuJob("a", oneGPU)))
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if status, err := register(clientTLS(t, files(a, "alice"))); err != nil || status != 200 {
		t.Errorf("with a certificate: %d, %v", status, err)
	}
	if status, err := register(clientTLS(t, TLSFiles{CAFile: a.CAFile()})); err == nil {
		t.Errorf("without a certificate: %d", status)
	}
	if got := audit(); strings.Count(got, `"certificate":"alice"`) != 1 {
		t.Errorf("audit log: %s", got)
	}
}

// startTLS serves until the test ends; audit returns the log after that.
func startTLS(t *testing.T, nomad *url.URL, toNomad, serve *tls.Config) (address string, audit func() string) {
	t.Helper()
	var log strings.Builder
	c := Config{Nomad: nomad, NomadTLS: toNomad, TLS: serve, Decider: &fakeDecider{}, Limits: testLimits,
		Audit: NewAudit(&log), Logger: hclog.NewNullLogger()}
	server, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	stop := func() string {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
		return log.String()
	}
	t.Cleanup(func() { stop() })
	return "https://" + l.Addr().String(), stop
}

func TestTLSFiles(t *testing.T) {
	a := testca.New(t)
	if c, err := ServerTLS(TLSFiles{}); c != nil || err != nil {
		t.Errorf("no files: %v, %v", c, err)
	}
	for name, f := range map[string]TLSFiles{
		"CA alone":   {CAFile: a.CAFile()},
		"no key":     {CertFile: files(a, "x").CertFile},
		"not PEM":    {CertFile: files(a, "x").CertFile, KeyFile: files(a, "x").KeyFile, CAFile: "tls_test.go"},
		"no CA file": {CertFile: files(a, "x").CertFile, KeyFile: files(a, "x").KeyFile, CAFile: "missing"},
	} {
		if _, err := ServerTLS(f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRenewedCertificate(t *testing.T) {
	a := testca.New(t)
	f := files(a, "x")
	pair, err := newKeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := pair.get()
	a.Sign("x")
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(f.CertFile, later, later); err != nil {
		t.Fatal(err)
	}
	second, err := pair.get()
	if err != nil || second == first {
		t.Errorf("the renewed certificate is not used: %v", err)
	}
	if err := os.Remove(f.CertFile); err != nil {
		t.Fatal(err)
	}
	if third, err := pair.get(); err != nil || third != second {
		t.Errorf("while the file is away the last one should serve: %v", err)
	}
}
