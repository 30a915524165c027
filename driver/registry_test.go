package driver

import (
	"archive/tar"
	"bytes"
	"context"
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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"golang.org/x/crypto/bcrypt"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// registry is Debian's docker-registry on loopback.
type registry struct {
	addr string
}

const (
	registryUser     = "ann"
	registryPassword = "s3cret-of-ann"
)

// startRegistry starts a registry. With auth it wants a login, with a
// certificate it speaks TLS.
func startRegistry(t *testing.T, auth bool, certificate, key string) *registry {
	t.Helper()
	binary, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("there is no docker-registry on PATH")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	addr := listener.Addr().String()
	must.NoError(t, listener.Close())
	dir := t.TempDir()
	config := fmt.Sprintf("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: %s\nhttp:\n  addr: %s\n", dir, addr)
	if certificate != "" {
		config += fmt.Sprintf("  tls:\n    certificate: %s\n    key: %s\n", certificate, key)
	}
	if auth {
		hash, err := bcrypt.GenerateFromPassword([]byte(registryPassword), bcrypt.MinCost)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(dir+"/htpasswd", []byte(registryUser+":"+string(hash)+"\n"), 0o600))
		config += fmt.Sprintf("auth:\n  htpasswd:\n    realm: test\n    path: %s/htpasswd\n", dir)
	}
	must.NoError(t, os.WriteFile(dir+"/config.yml", []byte(config), 0o600))
	t.Cleanup(startBound(t, exec.Command(binary, "serve", dir+"/config.yml")).kill)
	eventually(t, "the registry listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return &registry{addr: addr}
}

// push uploads the test image under the given name and returns its reference.
// It does not go through containerd, which would then hold the layers already.
func (r *registry) push(t *testing.T, name string, auth bool, client *http.Client) string {
	t.Helper()
	scheme := "http://"
	if client != http.DefaultClient {
		scheme = "https://"
	}
	put := func(path, mediaType string, body []byte) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPut, path, bytes.NewReader(body))
		must.NoError(t, err)
		req.Header.Set("Content-Type", mediaType)
		if auth {
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
		if auth {
			req.SetBasicAuth(registryUser, registryPassword)
		}
		resp, err := client.Do(req)
		must.NoError(t, err)
		must.NoError(t, resp.Body.Close())
		return resp.Header.Get("Location")
	}
	repository, tag, _ := strings.Cut(name, ":")
	var archive bytes.Buffer
	buildTestImage(t, &archive, r.addr+"/"+name)
	blobs, manifest := layoutOf(t, &archive)
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

func imageConfig(ref string) spec.Config {
	config := defaultTaskConfig("echo", "pulled")
	config.Image = ref
	return config
}

func TestPullAndForcePull(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, "", "")
		ref := r.push(t, "box:1", false, http.DefaultClient)
		out, _ := e.run(imageConfig(ref))
		must.Eq(t, "pulled\n", out)

		image, err := e.driver.runtime.Image(context.Background(), ref, "overlayfs")
		must.NoError(t, err)
		byDigest := r.addr + "/box@" + image.Digest.String()
		out, _ = e.run(imageConfig(byDigest))
		must.Eq(t, "pulled\n", out)

		missing := imageConfig(r.addr + "/none:1")
		_, _, err = e.harness.StartTask(e.quietTask(missing))
		must.ErrorContains(t, err, "has no such image")
		must.False(t, structs.IsRecoverable(err))
	})
}

func TestCachedImageNeedsNoNetwork(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := imageConfig(testImage)
		out, _ := e.run(config)
		must.Eq(t, "pulled\n", out)
		config.ForcePull = true
		config.ImagePullTimeout = "2s"
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "example.test")
		must.True(t, structs.IsRecoverable(err))
	})
}

func TestPullAuth(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, "", "")
		config := imageConfig(r.push(t, "box:1", true, http.DefaultClient))
		refused := func(e *env, config spec.Config) {
			t.Helper()
			_, _, err := e.harness.StartTask(e.quietTask(config))
			must.ErrorContains(t, err, "denies access")
			must.StrNotContains(t, err.Error(), registryPassword)
			must.False(t, structs.IsRecoverable(err))
		}
		refused(e, config)
		wrong := config
		wrong.Auth = spec.Auth{Username: registryUser, Password: "wrong"}
		refused(e, wrong)
		elsewhere := config
		elsewhere.Auth = spec.Auth{Username: registryUser, Password: registryPassword, ServerAddress: "other.example"}
		refused(e, elsewhere)

		config.Auth = spec.Auth{Username: registryUser, Password: registryPassword}
		config.ForcePull = true
		out, _ := e.run(config)
		must.Eq(t, "pulled\n", out)
		config.Auth = spec.Auth{}

		plugin := newEnv(t, e.containerd, func(c *Config) {
			c.Auth = AuthConfig{Username: registryUser, Password: registryPassword, ServerAddress: r.addr}
		})
		out, _ = plugin.run(config)
		must.Eq(t, "pulled\n", out)

		dockerConfig := filepath.Join(t.TempDir(), "config.json")
		must.NoError(t, os.WriteFile(dockerConfig, fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, r.addr, registryUser, registryPassword), 0o600))
		file := newEnv(t, e.containerd, func(c *Config) { c.Auth = AuthConfig{Config: dockerConfig} })
		out, _ = file.run(config)
		must.Eq(t, "pulled\n", out)

		bin := t.TempDir()
		script := fmt.Sprintf("#!/bin/sh\nread server\n[ \"$server\" = %s ] && echo '{\"ServerURL\":\"x\",\"Username\":%q,\"Secret\":%q}'\n", r.addr, registryUser, registryPassword)
		must.NoError(t, os.WriteFile(bin+"/docker-credential-test", []byte(script), 0o755))
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		helper := newEnv(t, e.containerd, func(c *Config) { c.Auth = AuthConfig{Helper: "test"} })
		out, _ = helper.run(config)
		must.Eq(t, "pulled\n", out)
	})
}

func TestPullTLSThroughHostsDir(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		dir := t.TempDir()
		certificate, key := selfSigned(t, dir)
		r := startRegistry(t, false, certificate, key)
		hostDir := filepath.Join(dir, "certs.d", "registry.example")
		must.NoError(t, os.MkdirAll(hostDir, 0o755))
		must.NoError(t, os.WriteFile(hostDir+"/hosts.toml", fmt.Appendf(nil, "[host.\"https://%s\"]\n  capabilities = [\"pull\", \"resolve\", \"push\"]\n  ca = %q\n", r.addr, certificate), 0o644))
		with := newEnv(t, e.containerd, func(c *Config) { c.HostsDir = filepath.Join(dir, "certs.d") })
		pool := x509.NewCertPool()
		text, err := os.ReadFile(certificate)
		must.NoError(t, err)
		must.True(t, pool.AppendCertsFromPEM(text))
		r.push(t, "box:1", false, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}})
		// A mirror: the name that the task writes is not where the image lies.
		out, _ := with.run(imageConfig("registry.example/box:1"))
		must.Eq(t, "pulled\n", out)
	})
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

// slowRegistry passes on to a registry, and holds layers back until released.
func slowRegistry(t *testing.T, r *registry, blobs *atomic.Int64, release <-chan struct{}) string {
	t.Helper()
	target, err := url.Parse("http://" + r.addr)
	must.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.URL.Path, "/blobs/") && req.Method == http.MethodGet {
			blobs.Add(1)
			select {
			case <-release:
			case <-req.Context().Done():
				return
			}
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestConcurrentPullsShareOne(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, "", "")
		r.push(t, "box:1", false, http.DefaultClient)
		var blobs atomic.Int64
		release := make(chan struct{})
		ref := slowRegistry(t, r, &blobs, release) + "/box:1"
		var wg sync.WaitGroup
		for range 4 {
			cfg := e.task(imageConfig(ref))
			wg.Go(func() { e.start(cfg) })
		}
		eventually(t, "a layer is asked for", func() bool { return blobs.Load() > 0 })
		close(release)
		wg.Wait()
		must.Eq(t, 2, blobs.Load(), must.Sprint("one config and one layer should have been fetched"))
	})
}

func TestPullTimeoutIsOfActivity(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, "", "")
		r.push(t, "box:1", false, http.DefaultClient)
		var blobs atomic.Int64
		config := imageConfig(slowRegistry(t, r, &blobs, make(chan struct{})) + "/box:1")
		config.ImagePullTimeout = "400ms"
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "no data from the registry for 400ms")
		must.True(t, structs.IsRecoverable(err))
		must.Len(t, 0, e.containers())
	})
}

func TestImageArchiveFromTaskDirectory(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		var archive bytes.Buffer
		// The name in the archive is somebody else's, and must stay theirs.
		buildTestImage(t, &archive, "docker.io/library/redis:7")
		config := imageConfig("local/image.tar")
		cfg := e.task(config)
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), archive.Bytes(), 0o644))
		e.start(cfg)
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		_, err := e.driver.runtime.Image(context.Background(), "docker.io/library/redis:7", "overlayfs")
		must.ErrorContains(t, err, "not in containerd")

		bad := e.quietTask(config)
		must.NoError(t, os.WriteFile(filepath.Join(bad.TaskDir().LocalDir, "image.tar"), []byte("no tar"), 0o644))
		_, _, err = e.harness.StartTask(bad)
		must.ErrorContains(t, err, `image "local/image.tar"`)
		_, _, err = e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "not in the task directory")
	})
}

func TestImageCollection(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, "", "")
		ref := r.push(t, "box:1", false, http.DefaultClient)
		config := imageConfig(ref)
		config.Command, config.Args = "sleep", []string{"1000"}
		cfg := e.task(config)
		e.start(cfg)
		collect := func(in time.Duration) {
			t.Helper()
			settings, cl, _, err := e.driver.parts()
			must.NoError(t, err)
			now := time.Now()
			must.NoError(t, e.driver.reap(cl, settings, now.Add(in), now.Add(in)))
		}
		has := func(name string) bool {
			_, err := e.driver.runtime.Image(context.Background(), name, "overlayfs")
			return err == nil
		}
		collect(time.Hour)
		must.True(t, has(ref), must.Sprint("an image in use was removed"))
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		collect(time.Minute)
		must.True(t, has(ref), must.Sprint("the delay was not kept"))
		collect(time.Hour)
		must.False(t, has(ref))
		must.True(t, has(testImage), must.Sprint("somebody else's image was removed"))
	})
}
