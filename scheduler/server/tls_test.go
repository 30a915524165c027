package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", nil, nil)
	return a
}

// sign writes name.pem and name-key.pem.
func (a *authority) sign(name string, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: parent == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+"-key.pem", "PRIVATE KEY", secret)
	return cert, key
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// files are the files of a certificate that the authority signed.
func (a *authority) files(name string) TLSFiles {
	a.t.Helper()
	if _, err := os.Stat(filepath.Join(a.dir, name+".pem")); err != nil {
		a.sign(name, a.cert, a.key)
	}
	return TLSFiles{CertFile: filepath.Join(a.dir, name+".pem"), KeyFile: filepath.Join(a.dir, name+"-key.pem"), CAFile: filepath.Join(a.dir, "ca.pem")}
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
	a := newAuthority(t)
	nomad := &fakeNomad{}
	upstream := httptest.NewUnstartedServer(nomad)
	upstream.TLS = serverTLS(t, a.files("server.global.nomad"))
	upstream.StartTLS()
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	toNomad := a.files("scheduler")
	toNomad.ServerName = "server.global.nomad"
	server, audit := startTLS(t, address, clientTLS(t, toNomad), serverTLS(t, a.files("gpu.example")))

	register := func(c *tls.Config) (int, error) {
		transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Post(server+"/v1/jobs", "", strings.NewReader(gpuJob("a", oneGPU)))
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if status, err := register(clientTLS(t, a.files("alice"))); err != nil || status != 200 {
		t.Errorf("with a certificate: %d, %v", status, err)
	}
	if status, err := register(clientTLS(t, TLSFiles{CAFile: a.files("alice").CAFile})); err == nil {
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
	c := Config{Nomad: nomad, NomadTLS: toNomad, TLS: serve, Decider: &fakeDecider{}, Limits: DefaultLimits(),
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
	a := newAuthority(t)
	if c, err := ServerTLS(TLSFiles{}); c != nil || err != nil {
		t.Errorf("no files: %v, %v", c, err)
	}
	for name, f := range map[string]TLSFiles{
		"CA alone":   {CAFile: a.files("x").CAFile},
		"no key":     {CertFile: a.files("x").CertFile},
		"not PEM":    {CertFile: a.files("x").CertFile, KeyFile: a.files("x").KeyFile, CAFile: "tls_test.go"},
		"no CA file": {CertFile: a.files("x").CertFile, KeyFile: a.files("x").KeyFile, CAFile: "missing"},
	} {
		if _, err := ServerTLS(f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRenewedCertificate(t *testing.T) {
	a := newAuthority(t)
	f := a.files("x")
	pair, err := newKeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := pair.get()
	a.sign("x", a.cert, a.key)
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
