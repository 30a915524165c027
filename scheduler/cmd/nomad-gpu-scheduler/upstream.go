// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
)

// upstream is how Nomad is reached: the environment, and over it the file.
type upstream struct {
	address *url.URL
	tls     *tls.Config // nil for plain HTTP
	config  api.Config  // speaks without a token
	token   func() (string, error)
}

func newUpstream(c *config.Config) (*upstream, error) {
	conf := api.DefaultConfig()
	for to, from := range map[*string]string{
		&conf.Address: c.Nomad.Address, &conf.Region: c.Nomad.Region, &conf.TLSConfig.CACert: c.Nomad.CAFile,
		&conf.TLSConfig.ClientCert: c.Nomad.CertFile, &conf.TLSConfig.ClientKey: c.Nomad.KeyFile,
		&conf.TLSConfig.TLSServerName: c.Nomad.TLSServerName,
	} {
		if from != "" {
			*to = from
		}
	}
	u := &upstream{token: func() (string, error) { return "", nil }}
	var err error
	if u.address, err = url.Parse(conf.Address); err != nil {
		return nil, fmt.Errorf("read Nomad's address: %w", err)
	}
	if u.tls, err = tlsOf(u.address, conf.TLSConfig); err != nil {
		return nil, fmt.Errorf("connect to Nomad: %w", err)
	}
	if secret := conf.SecretID; secret != "" {
		u.token = func() (string, error) { return secret, nil }
	}
	if c.Nomad.TokenFile != "" {
		u.token = (&tokenFile{path: c.Nomad.TokenFile}).read
	}
	if _, err := u.token(); err != nil {
		return nil, err
	}
	conf.SecretID, conf.TLSConfig = "", nil
	conf.HttpClient = &http.Client{Transport: server.NewTransport(u.tls)}
	u.config = *conf
	return u, nil
}

// tlsOf is how to speak to an address; nil for plain HTTP.
func tlsOf(address *url.URL, f *api.TLSConfig) (*tls.Config, error) {
	switch {
	case address.Scheme == "http":
		return nil, nil
	case address.Scheme != "https" || address.Host == "":
		return nil, fmt.Errorf("address %q is not a URL such as \"https://nomad.example:4646\"", address)
	case f.Insecure:
		return nil, errors.New("NOMAD_SKIP_VERIFY is set, and tokens do not go to servers that are not verified; name the CA with NOMAD_CACERT")
	case f.CAPath != "":
		return nil, errors.New("NOMAD_CAPATH is set, and only a file is read; name it with NOMAD_CACERT")
	}
	return server.ClientTLS(server.TLSFiles{CertFile: f.ClientCert, KeyFile: f.ClientKey, CAFile: f.CACert, ServerName: f.TLSServerName})
}

// client speaks to Nomad with the service's own token.
func (u *upstream) client() (*api.Client, error) {
	own := u.config
	own.HttpClient = &http.Client{Transport: bearer{u.config.HttpClient.Transport, u.token}}
	client, err := api.NewClient(&own)
	if err != nil {
		return nil, fmt.Errorf("make Nomad client: %w", err)
	}
	return client, nil
}

// bearer gives requests the service's own token.
type bearer struct {
	next  http.RoundTripper
	token func() (string, error)
}

// RoundTrip sends a copy of the request, as an http.RoundTripper must.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := b.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("X-Nomad-Token", token)
	}
	return b.next.RoundTrip(r)
}

// tokenFile is a token that is read again when its file changes: Nomad renews a
// task's identity in place.
type tokenFile struct {
	path    string
	mu      sync.Mutex
	changed time.Time
	token   string
}

// read returns the newest token that could be read. While the file is being
// replaced the last one serves on.
func (f *tokenFile) read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.token != "" && info.ModTime().Equal(f.changed) {
		return f.token, nil
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(f.path)
	}
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = fmt.Errorf("%q is empty", f.path)
	}
	switch {
	case err == nil:
		f.token, f.changed = token, info.ModTime()
	case f.token == "":
		return "", fmt.Errorf("read Nomad token: %w", err)
	}
	return f.token, nil
}
