// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// figures skips unless measurements were asked for, which take minutes and
// mean something on a quiet machine only.
func figures(t *testing.T) {
	t.Helper()
	if os.Getenv("NOMAD_GPU_FIGURES") == "" {
		t.Skip("measurements run with NOMAD_GPU_FIGURES=1")
	}
}

func median(times []time.Duration) time.Duration {
	times = slices.Clone(times)
	slices.Sort(times)
	return times[len(times)/2]
}

// bare does with containerd's client what the driver does, with the same
// specification, and nothing else.
type bare struct {
	t      *testing.T
	client *client.Client
	ctx    context.Context
	image  client.Image
	spec   *oci.Spec
}

func newBare(e *env, like *drivers.TaskConfig) *bare {
	e.t.Helper()
	cl, err := client.New(e.config.Socket, client.WithDefaultNamespace(testNamespace))
	must.NoError(e.t, err)
	e.t.Cleanup(func() { _ = cl.Close() })
	b := &bare{t: e.t, client: cl, ctx: namespaces.WithNamespace(context.Background(), testNamespace)}
	b.image, err = cl.GetImage(b.ctx, testImage)
	must.NoError(e.t, err)
	watched, err := e.driver.tasks.get(like.ID)
	must.NoError(e.t, err)
	container, err := cl.LoadContainer(b.ctx, watched.container.ID)
	must.NoError(e.t, err)
	b.spec, err = container.Spec(b.ctx)
	must.NoError(e.t, err)
	b.standIn()
	return b
}

// standIn gives the specification other files and directories where it names those
// of the driver's stage, which are gone once a container has started.
func (b *bare) standIn() {
	dir := b.t.TempDir()
	for i, m := range b.spec.Mounts {
		if _, err := os.Stat(m.Source); !filepath.IsAbs(m.Source) || err == nil {
			continue
		}
		source := filepath.Join(dir, fmt.Sprint(i))
		if strings.HasPrefix(m.Destination, "/etc/") {
			must.NoError(b.t, os.WriteFile(source, nil, 0o644))
		} else {
			must.NoError(b.t, os.Mkdir(source, 0o755))
		}
		b.spec.Mounts[i].Source = source
	}
}

func (b *bare) start(id string) (client.Container, client.Task, <-chan client.ExitStatus) {
	b.t.Helper()
	spec := *b.spec
	linux := *spec.Linux
	linux.CgroupsPath = "/" + testNamespace + "/" + id
	spec.Linux = &linux
	container, err := b.client.NewContainer(b.ctx, id, client.WithImage(b.image), client.WithSnapshotter("overlayfs"),
		client.WithNewSnapshot(id, b.image), client.WithSpec(&spec), client.WithRuntime("io.containerd.runc.v2", nil))
	must.NoError(b.t, err)
	task, err := container.NewTask(b.ctx, cio.NullIO)
	must.NoError(b.t, err)
	exited, err := task.Wait(b.ctx)
	must.NoError(b.t, err)
	must.NoError(b.t, task.Start(b.ctx))
	return container, task, exited
}

func (b *bare) stop(container client.Container, task client.Task, exited <-chan client.ExitStatus) {
	b.t.Helper()
	must.NoError(b.t, task.Kill(b.ctx, syscall.SIGKILL))
	<-exited
	_, err := task.Delete(b.ctx)
	must.NoError(b.t, err)
	must.NoError(b.t, container.Delete(b.ctx, client.WithSnapshotCleanup))
}

func TestFiguresStartStop(t *testing.T) {
	figures(t)
	withContainerdAlone(t, func(t *testing.T, e *env) {
		example := e.quietTask(defaultTaskConfig("sleep", "1000"))
		e.start(example)
		b := newBare(e, example)
		var driverStart, driverStop, bareStart, bareStop []time.Duration
		for i := range 30 {
			cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
			driver := func() {
				began := time.Now()
				_, _, err := e.driver.StartTask(cfg)
				driverStart = append(driverStart, time.Since(began))
				must.NoError(t, err)
				began = time.Now()
				must.NoError(t, e.driver.StopTask(cfg.ID, time.Minute, "SIGKILL"))
				must.NoError(t, e.driver.DestroyTask(cfg.ID, true))
				driverStop = append(driverStop, time.Since(began))
			}
			plain := func() {
				began := time.Now()
				container, task, exited := b.start(fmt.Sprintf("bare-%d", i))
				bareStart = append(bareStart, time.Since(began))
				began = time.Now()
				b.stop(container, task, exited)
				bareStop = append(bareStop, time.Since(began))
			}
			// Neither is always first.
			if i%2 == 0 {
				driver()
				plain()
			} else {
				plain()
				driver()
			}
		}
		report := func(what string, driver, bare []time.Duration) {
			d, b := median(driver), median(bare)
			fmt.Printf("figure: %s %s: driver %s, bare client %s, ratio %.2f\n", t.Name(), what, d.Round(100*time.Microsecond), b.Round(100*time.Microsecond), float64(d)/float64(b))
		}
		report("start", driverStart, bareStart)
		report("stop", driverStop, bareStop)
	})
}

// TestFiguresUnpack: layers are unpacked in the driver, and by a bare client in
// containerd, each of which has its own to unpack.
func TestFiguresUnpack(t *testing.T) {
	figures(t)
	for name, binary := range containerdBinaries(t) {
		e := newEnv(t, startContainerd(t, binary), nil)
		cl, err := client.New(e.config.Socket, client.WithDefaultNamespace(testNamespace))
		must.NoError(t, err)
		ctx := namespaces.WithNamespace(context.Background(), testNamespace)
		var driver, bare []time.Duration
		for i := range 10 {
			ref := fmt.Sprintf("example.test/unpack:%d", i)
			var archive bytes.Buffer
			must.NoError(t, testimage.BuildPacked(&archive, ref, []testimage.Packed{packed(t, gzipLayer, someLayer(t, ref))}, ispec.ImageConfig{}))
			imported, err := cl.Import(ctx, &archive)
			must.NoError(t, err)
			began := time.Now()
			if i%2 == 0 {
				_, err = e.driver.runtime.Image(ctx, ref, "overlayfs")
				driver = append(driver, time.Since(began))
			} else {
				err = client.NewImage(cl, imported[0]).Unpack(ctx, "overlayfs")
				bare = append(bare, time.Since(began))
			}
			must.NoError(t, err)
		}
		must.NoError(t, cl.Close())
		d, b := median(driver), median(bare)
		fmt.Printf("figure: %s %s 100 MiB in 2000 files: driver %s, containerd %s, ratio %.2f\n", t.Name(), name, d.Round(time.Millisecond), b.Round(time.Millisecond), float64(d)/float64(b))
	}
}

// someLayer has files that compress to about half.
func someLayer(t *testing.T, seed string) []byte {
	t.Helper()
	random := rand.NewChaCha8(sha256.Sum256([]byte(seed)))
	files := map[string]testimage.File{}
	for i := range 2000 {
		content := make([]byte, 51<<10)
		_, _ = random.Read(content[:len(content)/2])
		files[fmt.Sprintf("/d%d/f%d", i%20, i)] = testimage.File{Content: content}
	}
	layer, err := testimage.Layer(files)
	must.NoError(t, err)
	return layer
}

func TestFiguresAtOnce(t *testing.T) {
	figures(t)
	withContainerdAlone(t, func(t *testing.T, e *env) {
		example := e.quietTask(defaultTaskConfig("sleep", "1000"))
		e.start(example)
		b := newBare(e, example)
		for _, count := range []int{10, 50} {
			var tasks []*drivers.TaskConfig
			for range count {
				tasks = append(tasks, e.quietTask(defaultTaskConfig("sleep", "1000")))
			}
			began := time.Now()
			var wg sync.WaitGroup
			for _, cfg := range tasks {
				wg.Go(func() {
					_, _, err := e.driver.StartTask(cfg)
					must.NoError(t, err)
				})
			}
			wg.Wait()
			driver := time.Since(began)
			for _, cfg := range tasks {
				e.end(cfg)
			}
			began = time.Now()
			stops := make([]func(), count)
			for i := range count {
				wg.Go(func() {
					container, task, exited := b.start(fmt.Sprintf("bare-%d-%d", count, i))
					stops[i] = func() { b.stop(container, task, exited) }
				})
			}
			wg.Wait()
			bare := time.Since(began)
			for _, stop := range stops {
				stop()
			}
			fmt.Printf("figure: %s %d at once: driver %s, bare client %s\n", t.Name(), count, driver.Round(time.Millisecond), bare.Round(time.Millisecond))
		}
	})
}

func TestFiguresMemory(t *testing.T) {
	figures(t)
	withContainerdAlone(t, func(t *testing.T, e *env) {
		binary, err := testimage.BuildGo(context.Background(), t.TempDir(), "github.com/nomad-gpu/nomad-gpu/plugin/nomad-driver-containerd")
		must.NoError(t, err)
		cmd := exec.Command(binary)
		host := plugin.NewClient(&plugin.ClientConfig{
			HandshakeConfig: base.Handshake, Cmd: cmd, AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(),
			Plugins: map[string]plugin.Plugin{base.PluginTypeDriver: drivers.NewDriverPlugin(nil, hclog.NewNullLogger()), base.PluginTypeBase: &base.PluginBase{}},
		})
		defer host.Kill()
		rpc, err := host.Client()
		must.NoError(t, err)
		raw, err := rpc.Dispense(base.PluginTypeDriver)
		must.NoError(t, err)
		driver := raw.(drivers.DriverPlugin)
		var data []byte
		must.NoError(t, base.MsgPackEncode(&data, e.config))
		must.NoError(t, driver.SetConfig(&base.Config{PluginConfig: data}))
		rss := func() string {
			text, err := os.ReadFile(filepath.Join("/proc", itoa(cmd.Process.Pid), "status"))
			must.NoError(t, err)
			return strings.TrimSpace(strings.TrimPrefix(lineOf(lines(string(text)), "VmRSS:"), "VmRSS:"))
		}
		idle := rss()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var tasks []*drivers.TaskConfig
		for range 100 {
			cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
			_, _, err := driver.StartTask(cfg)
			must.NoError(t, err)
			tasks = append(tasks, cfg)
			// As Nomad's client does: one wait and one stream of statistics each.
			_, err = driver.WaitTask(ctx, cfg.ID)
			must.NoError(t, err)
			stats, err := driver.TaskStats(ctx, cfg.ID, time.Second)
			must.NoError(t, err)
			go func() {
				for range stats {
				}
			}()
		}
		<-time.After(20 * time.Second)
		fmt.Printf("figure: %s driver memory: %s idle, %s with 100 tasks\n", t.Name(), idle, rss())
		cancel()
		for _, cfg := range tasks {
			must.NoError(t, driver.DestroyTask(cfg.ID, true))
		}
	})
}
