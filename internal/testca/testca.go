// SPDX-License-Identifier: MPL-2.0

// Package testca is a private certificate authority for tests.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates into a folder of the test.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := a.template("authority")
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	a.key = a.write("authority", template, nil)
	return a
}

// CAFile is the authority's own certificate, in PEM form.
func (a *Authority) CAFile() string { return filepath.Join(a.dir, "authority.pem") }

// Sign makes a certificate for servers and clients at 127.0.0.1 and under its
// name, in PEM form, with its key. A second one of the name replaces the first.
func (a *Authority) Sign(name string) (certFile, keyFile string) {
	a.t.Helper()
	a.write(name, a.template(name), a.key)
	return filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
}

func (a *Authority) template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// write signs with the authority's key, or makes the authority without one.
func (a *Authority) write(name string, template *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent := a.cert
	if signer == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.save(name+".pem", "CERTIFICATE", der)
	a.save(name+"-key.pem", "PRIVATE KEY", secret)
	return key
}

// save replaces a file as a whole, as a program that renews certificates does.
func (a *Authority) save(name, kind string, der []byte) {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
}
