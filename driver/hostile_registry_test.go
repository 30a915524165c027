// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// evilRegistry is a tenant's own: it has the blobs that it is given, names in its one
// manifest, "evil/x:1", whatever the tenant likes, and answers for other blobs as behind
// says.
func evilRegistry(t *testing.T, blobs map[string][]byte, target ispec.Descriptor, behind http.Handler) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rest, isEvil := strings.CutPrefix(req.URL.Path, "/v2/evil/x/")
		kind, name, _ := strings.Cut(rest, "/")
		if name == "1" {
			name = target.Digest.String()
		}
		content, has := blobs["blobs/sha256/"+strings.TrimPrefix(name, "sha256:")]
		switch {
		case req.URL.Path == "/v2/":
		case isEvil && (has || kind == "manifests" && req.Method == http.MethodHead):
			if kind == "manifests" {
				w.Header().Set("Content-Type", target.MediaType)
				w.Header().Set("Docker-Content-Digest", name)
			}
			if !has {
				w.Header().Set("Content-Length", itoa(int(target.Size)))
				return
			}
			_, _ = w.Write(content)
		default:
			behind.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/evil/x:1"
}

// A neighbor pulled a private image with a login, and the attacker, who has none, knows
// all of its digests. Containerd has its blobs, and fetches none of them again.
func TestHostileRegistry(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		private := startRegistry(t, true, false)
		base, err := boxLayer()
		must.NoError(t, err)
		secret, err := testimage.Layer(map[string]testimage.File{"/secret": {Content: []byte(canarySong)}})
		must.NoError(t, err)
		var archive bytes.Buffer
		must.NoError(t, testimage.BuildLayers(&archive, "private", [][]byte{base, secret}, ispec.ImageConfig{
			Entrypoint: []string{"sh", "-c", "cat /secret; echo $SECRET"}, Env: []string{"PATH=/bin", "SECRET=" + canarySong},
		}))
		blobs, described := layoutOf(t, bytes.NewReader(archive.Bytes()))
		manifest := parsed[ispec.Manifest](t, blobs[described.Digest.String()])
		image := parsed[ispec.Image](t, blobs[manifest.Config.Digest.String()])
		ref := private.pushArchive(t, "private:1", archive.Bytes())

		victim := defaultTaskConfig("")
		victim.Image = ref
		victim.Auth = taskconfig.Auth{Username: registryUser, Password: registryPassword}
		out, _ := e.run(victim)
		must.StrContains(t, out, canarySong)

		own := image
		own.Config.Env = []string{"PATH=/bin"}
		none := http.NotFoundHandler()
		garbage := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("x"), int(manifest.Layers[1].Size)))
		})
		address, err := url.Parse("http://" + private.addr)
		must.NoError(t, err)
		const notGiven = "names a part of the image that it does not give"
		empty, err := testimage.Layer(map[string]testimage.File{"/nothing": {Content: []byte("x")}})
		must.NoError(t, err)
		plain := func(files map[string][]byte, content []byte) ispec.Descriptor {
			d := ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Digest: digest.FromBytes(content), Size: int64(len(content))}
			files[blobName(d.Digest)] = content
			return d
		}
		for name, attack := range map[string]struct {
			// make puts what the registry has into files, and returns what its tag names.
			make   func(files map[string][]byte) ispec.Descriptor
			behind http.Handler
			says   string
		}{
			"layers that it lacks": {func(files map[string][]byte) ispec.Descriptor {
				m := manifest
				m.Config = putJSON(t, files, manifest.Config, own)
				return putJSON(t, files, described, m)
			}, none, notGiven},
			"layers for which it sends something": {func(files map[string][]byte) ispec.Descriptor {
				m := manifest
				m.Config = putJSON(t, files, manifest.Config, own)
				return putJSON(t, files, described, m)
			}, garbage, notGiven},
			"layers that another server is to send": {func(files map[string][]byte) ispec.Descriptor {
				m := manifest
				m.Config = putJSON(t, files, manifest.Config, own)
				m.Layers = []ispec.Descriptor{plain(files, base), manifest.Layers[1]}
				m.Layers[1].MediaType = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
				m.Layers[1].URLs = []string{"http://" + private.addr + "/v2/private/blobs/" + string(manifest.Layers[1].Digest)}
				return putJSON(t, files, described, m)
			}, none, notGiven},
			"layers behind the private registry's login": {func(files map[string][]byte) ispec.Descriptor {
				m := manifest
				m.Config = putJSON(t, files, manifest.Config, own)
				return putJSON(t, files, described, m)
			}, httputil.NewSingleHostReverseProxy(address), "denies access"},
			"a config that lies about the layers": {func(files map[string][]byte) ispec.Descriptor {
				m := manifest
				m.Config = putJSON(t, files, manifest.Config, own)
				m.Layers = []ispec.Descriptor{plain(files, base), plain(files, empty)}
				return putJSON(t, files, described, m)
			}, none, "as the config says"},
			"another's config": {func(files map[string][]byte) ispec.Descriptor {
				m := manifest
				m.Layers = []ispec.Descriptor{plain(files, base), plain(files, secret)}
				return putJSON(t, files, described, m)
			}, none, notGiven},
			"another's manifest": {func(map[string][]byte) ispec.Descriptor { return described }, none, notGiven},
			"an index of another's manifest": {func(files map[string][]byte) ispec.Descriptor {
				index := ispec.Index{MediaType: ispec.MediaTypeImageIndex, Manifests: []ispec.Descriptor{described}}
				return putJSON(t, files, ispec.Descriptor{MediaType: ispec.MediaTypeImageIndex}, index)
			}, none, notGiven},
		} {
			t.Run(name, func(t *testing.T) {
				files := map[string][]byte{}
				target := attack.make(files)
				config := defaultTaskConfig("sh", "-c", "cat /secret; echo $SECRET")
				config.Image = evilRegistry(t, files, target, attack.behind)
				if name == "another's manifest" || name == "another's config" {
					config = defaultTaskConfig("")
					config.Image = evilRegistry(t, files, target, attack.behind)
				}
				for range 2 { // what failed once leaves nothing that could be used
					cfg := e.quietTask(config)
					cfg.StdoutPath, cfg.StderrPath = filepath.Join(e.dir, cfg.AllocID), os.DevNull
					must.NoError(t, os.WriteFile(cfg.StdoutPath, nil, 0o600))
					_, _, err := e.harness.StartTask(cfg)
					if err == nil {
						e.wait(cfg.ID)
						must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
					}
					out, readErr := os.ReadFile(cfg.StdoutPath)
					must.NoError(t, readErr)
					must.StrNotContains(t, string(out), canarySong)
					must.ErrorContains(t, err, attack.says)
				}
			})
		}
		// Whoever has all of it may run it, from wherever it comes.
		files := map[string][]byte{}
		for name, content := range blobs {
			files[blobName(digest.Digest(name))] = content
		}
		config := defaultTaskConfig("")
		config.Image = evilRegistry(t, files, described, none)
		out, _ = e.run(config)
		must.StrContains(t, out, canarySong)
		victim.ForcePull = true
		out, _ = e.run(victim)
		must.StrContains(t, out, canarySong)
		must.Eq(t, nil, e.leftovers())
	})
}

// A tenant of the same registry has what the registry gives him: where it sent a blob
// itself, its answer to that tenant decides.
func TestHostileTenantOfTheSameRegistry(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		base, err := boxLayer()
		must.NoError(t, err)
		secret, err := testimage.Layer(map[string]testimage.File{"/secret": {Content: []byte(canarySong)}})
		must.NoError(t, err)
		var archive bytes.Buffer
		must.NoError(t, testimage.BuildLayers(&archive, "private", [][]byte{base, secret}, ispec.ImageConfig{Entrypoint: []string{"cat", "/secret"}, Env: []string{"PATH=/bin"}}))
		blobs, described := layoutOf(t, bytes.NewReader(archive.Bytes()))
		r.pushArchive(t, "private:1", archive.Bytes())
		// The registry checks who asks: private is closed to all but the first caller.
		address, err := url.Parse("http://" + r.addr)
		must.NoError(t, err)
		files := map[string][]byte{}
		manifest := parsed[ispec.Manifest](t, blobs[described.Digest.String()])
		image := parsed[ispec.Image](t, blobs[manifest.Config.Digest.String()])
		image.Config.Labels = map[string]string{"of": "the attacker"}
		m := manifest
		m.Config = putJSON(t, files, manifest.Config, image)
		evil := putJSON(t, files, described, m)
		var mu sync.Mutex
		asked := map[string]int{}
		proxy := httputil.NewSingleHostReverseProxy(address)
		ref := evilRegistry(t, files, evil, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			asked[req.Method+" "+req.URL.Path]++
			mu.Unlock()
			proxy.ServeHTTP(w, req)
		}))
		host, _, _ := strings.Cut(ref, "/")
		config := defaultTaskConfig("")
		config.Image = host + "/private:1"
		out, _ := e.run(config)
		must.Eq(t, canarySong, out)
		config.Image = ref
		e.refused(e.quietTask(config), "names a part of the image that it does not give")
		mu.Lock()
		defer mu.Unlock()
		// The first layer that is refused ends the pull, and the others may not be asked for.
		proofs := 0
		for _, layer := range manifest.Layers {
			proofs += asked["GET /v2/evil/x/blobs/"+string(layer.Digest)]
		}
		must.Between(t, 1, proofs, len(manifest.Layers), must.Sprint(asked))
		text, err := json.Marshal(asked)
		must.NoError(t, err)
		t.Logf("%s", text)
		must.Eq(t, nil, e.leftovers())
	})
}

// TestLayersComeFromTheirRegistry and from no other server that a manifest names: the
// driver would ask whatever the author likes, from the node.
func TestLayersComeFromTheirRegistry(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		var asked atomic.Int64
		inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		defer inside.Close()
		var archive bytes.Buffer
		must.NoError(t, buildTestImage(&archive, "named elsewhere"))
		blobs, described := layoutOf(t, &archive)
		files := map[string][]byte{}
		for name, content := range blobs {
			files[blobName(digest.Digest(name))] = content
		}
		manifest := parsed[ispec.Manifest](t, blobs[described.Digest.String()])
		for i := range manifest.Layers {
			manifest.Layers[i].URLs = []string{inside.URL + "/v1/agent/self"}
		}
		manifest.Config.URLs = []string{inside.URL + "/v1/agent/self"}
		config := imageConfig(evilRegistry(t, files, putJSON(t, files, described, manifest), http.NotFoundHandler()))
		out, _ := e.run(config)
		must.Eq(t, "pulled\n", out)
		must.Eq(t, 0, asked.Load())
	})
}

// TestTokensOfRegistriesAreBounded: they are read into the driver's memory.
func TestTokensOfRegistriesAreBounded(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		const much = 64 << 20
		var sent atomic.Int64
		var server *httptest.Server
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != "/token" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="evil"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = w.Write([]byte(`{"token":"`))
			for part := bytes.Repeat([]byte("x"), 1<<20); sent.Load() < much; {
				n, err := w.Write(part)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}))
		defer server.Close()
		for _, auth := range []taskconfig.Auth{{}, {Username: registryUser, Password: registryPassword}} {
			sent.Store(0)
			config := imageConfig(strings.TrimPrefix(server.URL, "http://") + "/evil/x:1")
			config.Auth = auth
			e.refused(e.quietTask(config), "answer of more than 1 MiB")
			must.Less(t, much/2, sent.Load(), must.Sprint("the driver read on"))
		}
	})
}

// A registry sends a task to another port of its host for a layer, and its token server does
// so for a login. Nothing of the login goes there.
func TestLoginsFollowNoRedirect(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		r.push(t, "private:1")
		address, err := url.Parse("http://" + r.addr)
		must.NoError(t, err)
		var mu sync.Mutex
		var heard []string
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			mu.Lock()
			heard = append(heard, req.URL.Path, req.Header.Get("Authorization"), string(body))
			mu.Unlock()
			req.SetBasicAuth(registryUser, registryPassword)
			httputil.NewSingleHostReverseProxy(address).ServeHTTP(w, req)
		}))
		t.Cleanup(other.Close)
		// redirecting is the registry behind a door that redirects some of its paths.
		redirecting := func(part string, challenge bool) string {
			var own string
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch {
				case strings.Contains(req.URL.Path, part):
					http.Redirect(w, req, other.URL+req.URL.Path, http.StatusTemporaryRedirect)
				case challenge:
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+own+`/token",service="registry"`)
					w.WriteHeader(http.StatusUnauthorized)
				default:
					httputil.NewSingleHostReverseProxy(address).ServeHTTP(w, req)
				}
			}))
			t.Cleanup(front.Close)
			own = front.URL
			return strings.TrimPrefix(front.URL, "http://") + "/private:1"
		}
		config := defaultTaskConfig("true")
		config.Auth = taskconfig.Auth{Username: registryUser, Password: registryPassword}
		config.Image = redirecting("/blobs/", false)
		_, result := e.run(config)
		must.Eq(t, 0, result.ExitCode)
		must.StrContains(t, strings.Join(heard, " "), "/blobs/")
		must.StrNotContains(t, strings.Join(heard, " "), "Basic")
		heard = nil
		config.Image = redirecting("/token", true)
		_, _, err = e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "a login is sent nowhere else")
		must.Len(t, 0, heard)
		must.Eq(t, nil, e.leftovers())
	})
}
