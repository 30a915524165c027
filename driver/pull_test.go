// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func imageConfig(ref string) taskconfig.Config {
	config := defaultTaskConfig("echo", "pulled")
	config.Image = ref
	return config
}

func TestCachedImageNeedsNoNetwork(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
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

func TestConformance_ConcurrentPulls(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		release := make(chan struct{})
		ref := slowRegistry(t, r, &blobs, 0, release) + "/box:1"
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
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		config := imageConfig(slowRegistry(t, r, &blobs, 0, make(chan struct{})) + "/box:1")
		config.ImagePullTimeout = "400ms"
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "no data from the registry for 400ms")
		must.True(t, structs.IsRecoverable(err))
		must.Len(t, 0, e.containers())
	})
}

func TestConformance_Start_LoadImage(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		var archive bytes.Buffer
		// The name in the archive is another image's, and must stay so.
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

func TestConformance_Start_NoImage(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		_, _, err := e.harness.StartTask(e.quietTask(imageConfig("")))
		must.ErrorContains(t, err, "image: is missing (write a reference")
		r := startRegistry(t, false, false)
		_, _, err = e.harness.StartTask(e.quietTask(imageConfig(r.addr + "/none:1")))
		must.ErrorContains(t, err, "has no such image")
		must.False(t, structs.IsRecoverable(err), must.Sprint("it will not be there later"))
		must.Eq(t, nil, e.leftovers())
	})
}

func TestConformance_Start_BadPull_Recoverable(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		_, _, err := e.harness.StartTask(e.quietTask(imageConfig("127.0.0.1:1/box:1"))) // where nothing listens
		must.ErrorContains(t, err, "connection refused")
		must.True(t, structs.IsRecoverable(err))
		must.Eq(t, nil, e.leftovers())
	})
}

// whichImage prints which of two images of one name it is.
func whichImage(ref string, force bool) taskconfig.Config {
	config := defaultTaskConfig("cat", "/etc/image")
	config.Image, config.ForcePull = ref, force
	return config
}

func TestConformance_ForcePull(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		ref := r.pushContent(t, "box:1", "first of "+r.addr)
		out, _ := e.run(whichImage(ref, false))
		must.Eq(t, "first of "+r.addr, out)
		r.pushContent(t, "box:1", "second of "+r.addr)
		out, _ = e.run(whichImage(ref, false))
		must.Eq(t, "first of "+r.addr, out)
		out, _ = e.run(whichImage(ref, true))
		must.Eq(t, "second of "+r.addr, out)
	})
}

func TestConformance_ForcePull_RepoDigest(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		ref := r.pushContent(t, "box:1", "first of "+r.addr)
		e.run(whichImage(ref, false))
		image, err := e.driver.runtime.Image(context.Background(), ref, "overlayfs")
		must.NoError(t, err)
		r.pushContent(t, "box:1", "second of "+r.addr)
		for _, force := range []bool{false, true} {
			out, _ := e.run(whichImage(r.addr+"/box@"+image.Digest.String(), force))
			must.Eq(t, "first of "+r.addr, out)
		}
	})
}

func TestConformance_AuthFromTaskConfig(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		config := imageConfig(r.push(t, "box:1"))
		for says, auth := range map[string]taskconfig.Auth{
			"(no login was sent: the task has no auth": {},
			"denies access: ":                          {Username: registryUser, Password: "wrong"},
			`(no login was sent: auth has server_address "https://other.example", and the image is in registry "`: {Username: registryUser, Password: registryPassword, ServerAddress: "https://other.example"},
		} {
			config.Auth = auth
			_, _, err := e.harness.StartTask(e.quietTask(config))
			must.ErrorContains(t, err, says)
			must.ErrorContains(t, err, "denies access")
			must.StrNotContains(t, err.Error(), registryPassword)
			must.False(t, structs.IsRecoverable(err))
		}
		config.Auth = taskconfig.Auth{Username: registryUser, Password: registryPassword, ServerAddress: "http://" + r.addr}
		config.ForcePull = true
		out, _ := e.run(config)
		must.Eq(t, "pulled\n", out)
	})
}

// TestAuthFromPluginConfig logs in with what the operator wrote, each way for an
// image that was not pulled before.
func TestAuthFromPluginConfig(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		file := filepath.Join(e.dir, "config.json")
		must.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, r.addr, registryUser, registryPassword), 0o600))
		for name, auth := range map[string]config.AuthConfig{
			"login:1": {Username: registryUser, Password: registryPassword, ServerAddress: r.addr},
			"file:1":  {Config: file},
		} {
			operator := e.with(func(c *config.Config) { c.Auth = auth })
			out, _ := operator.run(imageConfig(r.push(t, name)))
			must.Eq(t, "pulled\n", out)
		}
	})
}

// A helper is the operator's own or one that a Docker configuration file names.
func TestConformance_AuthFromHelper(t *testing.T) {
	withContainerdAlone(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, false)
		script := fmt.Sprintf("#!/bin/sh\nread server\n[ \"$server\" = %s ] && echo '{\"ServerURL\":\"x\",\"Username\":%q,\"Secret\":%q}'\n", r.addr, registryUser, registryPassword)
		must.NoError(t, os.WriteFile(filepath.Join(e.dir, "docker-credential-test"), []byte(script), 0o755))
		t.Setenv("PATH", e.dir+":"+os.Getenv("PATH"))
		file := filepath.Join(e.dir, "config.json")
		must.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"credHelpers":{%q:"test"}}`, r.addr), 0o600))
		for name, auth := range map[string]config.AuthConfig{"helper:1": {Helper: "test"}, "file:1": {Config: file}} {
			operator := e.with(func(c *config.Config) { c.Auth = auth })
			out, _ := operator.run(imageConfig(r.push(t, name)))
			must.Eq(t, "pulled\n", out)
		}
	})
}

// hosts writes containerd's settings for a registry and returns the driver that
// uses them.
func (e *env) hosts(registry, settings string) *env {
	e.t.Helper()
	root := filepath.Join(e.dir, "certs.d")
	must.NoError(e.t, os.MkdirAll(filepath.Join(root, registry), 0o755))
	must.NoError(e.t, os.WriteFile(filepath.Join(root, registry, "hosts.toml"), []byte(settings), 0o644))
	return e.with(func(c *config.Config) { c.HostsDir = root })
}

func TestPullOverTLS(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, true, true)
		config := imageConfig(r.push(t, "box:1"))
		config.Auth = taskconfig.Auth{Username: registryUser, Password: registryPassword}
		doubting := e.hosts(r.addr, fmt.Sprintf("server = \"https://%s\"\n", r.addr))
		_, _, err := doubting.harness.StartTask(doubting.quietTask(config))
		must.ErrorContains(t, err, "certificate")
		trusting := e.hosts(r.addr, fmt.Sprintf("server = \"https://%s\"\nca = %q\n", r.addr, r.certificate))
		out, _ := trusting.run(config)
		must.Eq(t, "pulled\n", out)
		config.Image, config.Auth.Password = r.addr+"/box:none", "wrong"
		_, _, err = trusting.harness.StartTask(trusting.quietTask(config))
		must.ErrorContains(t, err, "denies access")
	})
}

// The name that the task writes is not where the image lies; a mirror that is
// away is passed over.
func TestPullThroughMirrors(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, true)
		r.push(t, "box:1")
		mirrored := e.hosts("registry.example", fmt.Sprintf("[host.\"http://127.0.0.1:1\"]\n  capabilities = [\"pull\", \"resolve\"]\n[host.\"https://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n", r.addr, r.certificate))
		out, _ := mirrored.run(imageConfig("registry.example/box:1"))
		must.Eq(t, "pulled\n", out)
	})
}

// A pull ends with the driver that wanted it, and keeps nothing in containerd.
func TestPullEndsWithTheDriver(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		config := imageConfig(slowRegistry(t, r, &blobs, 0, make(chan struct{})) + "/box:1")
		started := make(chan error, 1)
		go func() {
			_, _, err := e.driver.StartTask(e.quietTask(config))
			started <- err
		}()
		eventually(t, "a layer is asked for", func() bool { return blobs.Load() > 0 })
		e.driver.Shutdown()
		must.Error(t, <-started)
		e.startDriver()
		e.nothingLeft()
	})
}

// Containerd collects garbage in the middle of a pull, and again when the task
// runs; nothing is fetched twice and nothing is taken.
func TestGarbageCollectionTakesNoLayers(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		release := make(chan struct{})
		config := imageConfig(slowRegistry(t, r, &blobs, 1, release) + "/box:1")
		config.Command, config.Args = "sleep", []string{"1000"}
		cfg := e.quietTask(config)
		started := make(chan error, 1)
		go func() {
			_, _, err := e.driver.StartTask(cfg)
			started <- err
		}()
		eventually(t, "one half is there and the other is asked for", func() bool { return blobs.Load() == 2 })
		e.collectGarbage()
		close(release)
		must.NoError(t, <-started)
		t.Cleanup(func() { _ = e.driver.DestroyTask(cfg.ID, true) })
		must.Eq(t, 2, blobs.Load(), must.Sprint("something had to be fetched again"))
		e.collectGarbage()
		result, err := e.harness.ExecTask(cfg.ID, []string{"cat", "/etc/image"}, callTimeout)
		must.NoError(t, err)
		must.Eq(t, r.addr+"/box:1", string(result.Stdout))
	})
}

// collectGarbage makes containerd collect now.
func (e *env) collectGarbage() {
	e.t.Helper()
	cl, err := e.containerd.client()
	must.NoError(e.t, err)
	defer cl.Close()
	service, ctx := cl.LeasesService(), context.Background()
	lease, err := service.Create(ctx, leases.WithRandomID())
	must.NoError(e.t, err)
	must.NoError(e.t, service.Delete(ctx, lease, leases.SynchronousDelete))
}

// holds reports whether containerd has an image.
func (e *env) holds(name string) bool {
	_, err := e.driver.runtime.Image(context.Background(), name, "overlayfs")
	return err == nil
}

// tidy does a round of tidying up, so much later.
func (e *env) tidy(later time.Duration) {
	e.t.Helper()
	n, err := e.driver.configured()
	must.NoError(e.t, err)
	settings, now := n.settings, time.Now()
	// The images of a containerd that tests share are not one test's to remove.
	settings.GC.Image = settings.GC.Image && !e.containerd.shared
	must.NoError(e.t, e.driver.reap(n.runtime, settings, now, now.Add(later)))
}

func TestConformance_ImageGC_On(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		r := startRegistry(t, false, false)
		ref := r.push(t, "box:1")
		config := imageConfig(ref)
		config.Command, config.Args = "sleep", []string{"1000"}
		cfg := e.quietTask(config)
		e.start(cfg)
		e.tidy(time.Hour)
		must.True(t, e.holds(ref), must.Sprint("an image in use was removed"))
		e.end(cfg)
		e.tidy(time.Minute)
		must.True(t, e.holds(ref), must.Sprint("the delay was not kept"))
		e.tidy(time.Hour)
		must.False(t, e.holds(ref))
		must.True(t, e.holds(testImage), must.Sprint("another owner's image was removed"))
	})
}

func TestConformance_ImageGC_Off(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		keeping := e.with(func(c *config.Config) { c.GC.Image = false })
		ref := startRegistry(t, false, false).push(t, "box:1")
		keeping.run(imageConfig(ref))
		keeping.tidy(time.Hour)
		must.True(t, keeping.holds(ref))
	})
}
