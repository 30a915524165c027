package driver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

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
	forEachContainerdAlone(t, func(t *testing.T, e *env) {
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

		plugin := e.with(func(c *Config) {
			c.Auth = AuthConfig{Username: registryUser, Password: registryPassword, ServerAddress: r.addr}
		})
		out, _ = plugin.run(config)
		must.Eq(t, "pulled\n", out)

		dockerConfig := filepath.Join(t.TempDir(), "config.json")
		must.NoError(t, os.WriteFile(dockerConfig, fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, r.addr, registryUser, registryPassword), 0o600))
		file := e.with(func(c *Config) { c.Auth = AuthConfig{Config: dockerConfig} })
		out, _ = file.run(config)
		must.Eq(t, "pulled\n", out)

		bin := t.TempDir()
		script := fmt.Sprintf("#!/bin/sh\nread server\n[ \"$server\" = %s ] && echo '{\"ServerURL\":\"x\",\"Username\":%q,\"Secret\":%q}'\n", r.addr, registryUser, registryPassword)
		must.NoError(t, os.WriteFile(bin+"/docker-credential-test", []byte(script), 0o755))
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		helper := e.with(func(c *Config) { c.Auth = AuthConfig{Helper: "test"} })
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
		with := e.with(func(c *Config) { c.HostsDir = filepath.Join(dir, "certs.d") })
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

func TestConformance_ConcurrentPulls(t *testing.T) {
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

func TestConformance_Pull_Timeout(t *testing.T) {
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

func TestConformance_Start_LoadImage(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		var archive bytes.Buffer
		// The name in the archive is somebody else's, and must stay theirs.
		must.NoError(t, buildTestImage(&archive, "docker.io/library/redis:7"))
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
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
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
