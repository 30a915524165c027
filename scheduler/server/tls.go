// SPDX-License-Identifier: MPL-2.0

package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// TLSFiles are the PEM files of one side of a connection.
type TLSFiles struct {
	// CertFile and KeyFile are this side's certificate; CAFile is what the
	// other side's must be signed by.
	CertFile, KeyFile, CAFile string
	// ServerName is the name that a server's certificate must hold, such as
	// "server.global.nomad"; empty for the address's host.
	ServerName string
}

// ServerTLS serves with the certificate. With a CA file every client needs a
// certificate signed by it. It is nil when no certificate is given.
func ServerTLS(f TLSFiles) (*tls.Config, error) {
	if f.CertFile == "" && f.KeyFile == "" {
		if f.CAFile != "" {
			return nil, errors.New("configure TLS: asking clients for certificates needs a certificate and a key of our own")
		}
		return nil, nil
	}
	pair, err := newKeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"}, // what upgrades to a websocket
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}
	if f.CAFile != "" {
		if c.ClientCAs, err = readPool(f.CAFile); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// ClientTLS speaks to a server: with the system's roots or the CA file's, and
// with a certificate of our own where there is one.
func ClientTLS(f TLSFiles) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CAFile != "" {
		pool, err := readPool(f.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = pool
	}
	if f.CertFile == "" && f.KeyFile == "" {
		return c, nil
	}
	pair, err := newKeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get() }
	return c, nil
}

func readPool(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read CA certificates: %q holds none in PEM form", path)
	}
	return pool, nil
}

// keyPair is a certificate that is read again when its file changes, so that a
// renewed one needs no restart.
type keyPair struct {
	certFile, keyFile string
	mu                sync.Mutex
	changed           time.Time
	pair              *tls.Certificate
}

func newKeyPair(certFile, keyFile string) (*keyPair, error) {
	p := &keyPair{certFile: certFile, keyFile: keyFile}
	_, err := p.get()
	return p, err
}

// get returns the newest certificate that can be read. While a new one is
// being written the last one serves on.
func (p *keyPair) get() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, err := os.Stat(p.certFile)
	if err == nil && p.pair != nil && info.ModTime().Equal(p.changed) {
		return p.pair, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(p.certFile, p.keyFile)
	}
	if err != nil && p.pair != nil {
		return p.pair, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	p.pair, p.changed = &pair, info.ModTime()
	return p.pair, nil
}
