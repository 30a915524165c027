// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"golang.org/x/crypto/bcrypt"

	"github.com/nomad-gpu/nomad-gpu/internal/testport"
)

// registry is Debian's docker-registry on loopback.
type registry struct {
	addr string
	auth bool
	// certificate is the file of the certificate that it shows; empty without TLS.
	certificate string
}

const (
	registryUser     = "ann"
	registryPassword = "s3cret-of-ann"
)

// startRegistry starts a registry. With auth it wants a login, and when secure it
// speaks TLS.
func startRegistry(t *testing.T, auth, secure bool) *registry {
	t.Helper()
	binary, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("there is no docker-registry on PATH")
	}
	addr, dir := testport.Reserve(t), t.TempDir()
	config := fmt.Sprintf("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: %s\nhttp:\n  addr: %s\n", dir, addr)
	r := &registry{addr: addr, auth: auth}
	if secure {
		certificate, key := selfSigned(t, dir)
		r.certificate = certificate
		config += fmt.Sprintf("  tls:\n    certificate: %s\n    key: %s\n", certificate, key)
	}
	if auth {
		hash, err := bcrypt.GenerateFromPassword([]byte(registryPassword), bcrypt.MinCost)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(dir+"/htpasswd", []byte(registryUser+":"+string(hash)+"\n"), 0o600))
		config += fmt.Sprintf("auth:\n  htpasswd:\n    realm: test\n    path: %s/htpasswd\n", dir)
	}
	must.NoError(t, os.WriteFile(dir+"/config.yml", []byte(config), 0o600))
	var said bytes.Buffer
	command := exec.Command(binary, "serve", dir+"/config.yml")
	command.Stdout, command.Stderr = &said, &said
	process, err := startBound(command)
	must.NoError(t, err)
	t.Cleanup(process.kill)
	eventually(t, "the registry listens", func() bool {
		select {
		case <-process.ended:
			t.Fatalf("the registry ended: %s", said.String())
		default:
		}
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return r
}

// push uploads the test image under the given name and returns its reference.
// It does not go through containerd, which would then hold the layers already.
func (r *registry) push(t *testing.T, name string) string {
	t.Helper()
	return r.pushContent(t, name, r.addr+"/"+name)
}

// pushContent is push of an image of its own content, whatever its name.
func (r *registry) pushContent(t *testing.T, name, content string) string {
	t.Helper()
	var archive bytes.Buffer
	must.NoError(t, buildTestImage(&archive, content))
	return r.pushArchive(t, name, archive.Bytes())
}

// pushArchive pushes the image of an archive.
func (r *registry) pushArchive(t *testing.T, name string, archive []byte) string {
	t.Helper()
	scheme, client := "http://", http.DefaultClient
	if r.certificate != "" {
		pool := x509.NewCertPool()
		text, err := os.ReadFile(r.certificate)
		must.NoError(t, err)
		must.True(t, pool.AppendCertsFromPEM(text))
		scheme, client = "https://", &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	}
	put := func(path, mediaType string, body []byte) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPut, path, bytes.NewReader(body))
		must.NoError(t, err)
		req.Header.Set("Content-Type", mediaType)
		if r.auth {
			req.SetBasicAuth(registryUser, registryPassword)
		}
		resp, err := client.Do(req)
		must.NoError(t, err)
		must.NoError(t, resp.Body.Close())
		must.Eq(t, http.StatusCreated, resp.StatusCode)
	}
	upload := func(repository string) string {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, scheme+r.addr+"/v2/"+repository+"/blobs/uploads/", nil)
		must.NoError(t, err)
		if r.auth {
			req.SetBasicAuth(registryUser, registryPassword)
		}
		resp, err := client.Do(req)
		must.NoError(t, err)
		must.NoError(t, resp.Body.Close())
		return resp.Header.Get("Location")
	}
	repository, tag, _ := strings.Cut(name, ":")
	blobs, manifest := layoutOf(t, bytes.NewReader(archive))
	for digest, blob := range blobs {
		if digest != manifest.Digest.String() {
			put(upload(repository)+"&digest="+digest, "application/octet-stream", blob)
		}
	}
	put(scheme+r.addr+"/v2/"+repository+"/manifests/"+tag, manifest.MediaType, blobs[manifest.Digest.String()])
	return r.addr + "/" + name
}

// layoutOf reads the blobs and the manifest of an OCI image layout.
func layoutOf(t *testing.T, archive io.Reader) (map[string][]byte, ispec.Descriptor) {
	t.Helper()
	blobs := map[string][]byte{}
	var index ispec.Index
	for tr := tar.NewReader(archive); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return blobs, index.Manifests[0]
		}
		must.NoError(t, err)
		content, err := io.ReadAll(tr)
		must.NoError(t, err)
		if header.Name == ispec.ImageIndexFile {
			must.NoError(t, json.Unmarshal(content, &index))
		}
		if digest, found := strings.CutPrefix(header.Name, "blobs/sha256/"); found {
			blobs["sha256:"+digest] = content
		}
	}
}

func selfSigned(t *testing.T, dir string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must.NoError(t, err)
	privateDER, err := x509.MarshalECPrivateKey(private)
	must.NoError(t, err)
	certificate, key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
	must.NoError(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	must.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: privateDER}), 0o600))
	return certificate, key
}

// slowRegistry passes on to a registry, and holds layers and configs back, after
// the first free ones, until released.
func slowRegistry(t *testing.T, r *registry, blobs *atomic.Int64, free int64, release <-chan struct{}) string {
	t.Helper()
	target, err := url.Parse("http://" + r.addr)
	must.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.URL.Path, "/blobs/") && req.Method == http.MethodGet {
			if blobs.Add(1) > free {
				select {
				case <-release:
				case <-req.Context().Done():
					return
				}
			}
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}
