// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

const (
	testNamespace = "nomad-gpu"
	testImage     = "example.test/box:1"
)

// forEachContainerd runs a test against every containerd of this machine, at the
// same time as others and in the same containerd. It is for what depends on the release
// of containerd, or of the runc beside it: the lives of containers, and what the kernel
// holds them to.
func forEachContainerd(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	besideOthers(t, containerdBinaries(t), sharedContainerd, test)
}

// forEachOwnContainerd is for tests that kill their containerd, empty it, or
// collect what is in it.
func forEachOwnContainerd(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	besideOthers(t, containerdBinaries(t), startContainerd, test)
}

// withContainerd is for what the driver alone decides: it runs a test against one
// containerd, which the test's name draws, so that every release has about as many. With
// NOMAD_GPU_FULL=1 it is forEachContainerd.
func withContainerd(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	besideOthers(t, drawnContainerd(t), sharedContainerd, test)
}

// withOwnContainerd is forEachOwnContainerd in the same way.
func withOwnContainerd(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	besideOthers(t, drawnContainerd(t), startContainerd, test)
}

func besideOthers(t *testing.T, binaries map[string]string, open func(*testing.T, string) *containerd, test func(t *testing.T, e *env)) {
	t.Helper()
	t.Parallel()
	for name, binary := range binaries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newEnv(t, open(t, binary), nil))
		})
	}
}

// withContainerdAlone is for tests that no other may run beside: they need the
// machine's network or this process's environment for themselves.
func withContainerdAlone(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	inTurn(t, drawnContainerd(t), test)
}

// forEachContainerdAlone is forEachContainerd for such tests.
func forEachContainerdAlone(t *testing.T, test func(t *testing.T, e *env)) {
	t.Helper()
	inTurn(t, containerdBinaries(t), test)
}

func inTurn(t *testing.T, binaries map[string]string, test func(t *testing.T, e *env)) {
	t.Helper()
	for name, binary := range binaries {
		t.Run(name, func(t *testing.T) { test(t, newEnv(t, sharedContainerd(t, binary), nil)) })
	}
}

// everything is whether tests run in full, as make test-full has them.
func everything() bool { return os.Getenv("NOMAD_GPU_FULL") != "" }

// drawOf moves every draw by one for the next number: .ci/run has one of the commit, so
// that CI meets the other draws with other commits. A test that failed names its containerd.
var drawOf = func() int { n, _ := strconv.Atoi(os.Getenv("NOMAD_GPU_DRAW")); return n }()

// drawnContainerd is one of the containerds, by version, or all of them.
func drawnContainerd(t *testing.T) map[string]string {
	t.Helper()
	all := containerdBinaries(t)
	if everything() {
		return all
	}
	names := slices.Sorted(maps.Keys(all))
	name := names[(int(crc32.ChecksumIEEE([]byte(t.Name())))+drawOf)%len(names)]
	return map[string]string{name: all[name]}
}

// drawnFrom is the part of a list that a test with this containerd goes through: each
// element has one of them, and in full every one.
func drawnFrom[T any](e *env, all []T) []T {
	e.t.Helper()
	if everything() {
		return all
	}
	names := slices.Sorted(maps.Keys(containerdBinaries(e.t)))
	mine := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(e.t.Name(), "/"+name) })
	var drawn []T
	for i, element := range all {
		if (i+drawOf)%len(names) == mine {
			drawn = append(drawn, element)
		}
	}
	return drawn
}

// env is a driver behind Nomad's own plugin interface, on a node of its own, with
// a containerd.
type env struct {
	t          *testing.T
	containerd *containerd
	// dir is a directory of this node, which holds its state directory.
	dir string
	// node is the ID of the Nomad node.
	node    string
	config  config.Config
	driver  *Driver
	harness *dtestutil.DriverHarness
	// losesShims is set where shims are killed in the middle of what they do.
	losesShims bool
	// allocs are those whose tasks were made here.
	allocs []string
}

func newEnv(t *testing.T, c *containerd, change func(*config.Config)) *env {
	t.Helper()
	dir, err := os.MkdirTemp(c.dir, "n")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755))
	e := &env{t: t, containerd: c, dir: dir, node: uuid.Generate(), config: config.Config{
		Enabled: true, Socket: c.socket(), Namespace: testNamespace, ContainerdRuntime: "io.containerd.runc.v2",
		Snapshotter: "overlayfs", StatsInterval: "1s", AllowCaps: taskconfig.DefaultCaps, InitPath: "/usr/bin/tini-static",
		Volumes: config.VolumesConfig{Enabled: true}, AllowUnconfined: true, MaxStarts: 100, MaxExecSessions: 100, MaxSwap: "1G", MaxImageSize: "1G", MaxUnpackedSize: "2G", ImageTimeout: "2h", MaxPullTimeout: "10m", AllowSnapshotters: []string{"*"},
		GC:  config.GCConfig{Image: true, ImageDelay: "3m", Container: true, Period: "5m", Grace: "5m"},
		GPU: config.GPUConfig{Watchdog: config.WatchdogKill}, StateDir: filepath.Join(dir, "nomad-gpu"),
		CDISpecDirs: []string{filepath.Join(dir, "cdi")},
		CNIPath:     "/opt/cni/bin:/usr/lib/cni", BridgeSubnet: "172.26.240.0/24",
	}}
	if change != nil {
		change(&e.config)
	}
	e.startDriver()
	return e
}

// with is the same node after the operator changed the driver's configuration.
func (e *env) with(change func(*config.Config)) *env {
	e.t.Helper()
	changed := &env{t: e.t, containerd: e.containerd, dir: e.dir, node: e.node, config: e.config}
	change(&changed.config)
	changed.startDriver()
	return changed
}

// startDriver makes a new driver process, as far as it can be told apart.
func (e *env) startDriver() {
	e.t.Helper()
	d := New(context.Background(), hclog.New(&hclog.LoggerOptions{
		Level: hclog.Warn, Output: os.Stderr,
		Exclude: hclog.ExcludeFuncs{ // it never is, and tests have no client of Nomad's
			hclog.ExcludeByPrefix("Nomad's data_dir is not mounted").Exclude, hclog.ExcludeByPrefix("a start is not ended").Exclude,
		}.Exclude,
	}))
	e.driver = d
	e.harness = dtestutil.NewDriverHarness(e.t, d)
	e.t.Cleanup(d.Shutdown)
	var data []byte
	must.NoError(e.t, base.MsgPackEncode(&data, e.config))
	must.NoError(e.t, e.harness.SetConfig(&base.Config{PluginConfig: data}))
}

// parse reads what would be written in a config block.
func parse(t *testing.T, schema *hclspec.Spec, hcl string, into any) {
	t.Helper()
	var tree map[string]any
	hclutils.NewConfigParser(schema).ParseHCL(t, "config {\n"+hcl+"\n}", &tree)
	var packed []byte
	must.NoError(t, base.MsgPackEncode(&packed, tree))
	must.NoError(t, agentconfig.Decode(packed, into))
}

// defaultTaskConfig has what the schema's defaults would set.
func defaultTaskConfig(command string, args ...string) taskconfig.Config {
	return taskconfig.Config{
		Image: testImage, Command: command, Args: args, ImagePullTimeout: "5m",
		NoNewPrivileges: true, Seccomp: true, HostDNS: true, Swappiness: -1,
	}
}

// task makes a task of its own allocation, with its directories and logs.
func (e *env) task(config taskconfig.Config, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	e.t.Helper()
	return e.newTask(config, true, change...)
}

// quietTask is a task without logs: no process opens the pipes of one that is
// refused, and the log collector would wait for that.
func (e *env) quietTask(config taskconfig.Config, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	e.t.Helper()
	return e.newTask(config, false, change...)
}

func (e *env) newTask(config taskconfig.Config, logs bool, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	e.t.Helper()
	alloc := uuid.Generate()
	e.allocs = append(e.allocs, alloc)
	cfg := &drivers.TaskConfig{
		ID: alloc + "/web/" + uuid.Short(), Name: "web", AllocID: alloc, NodeID: e.node,
		JobID: "job", JobName: "job", TaskGroupName: "group", Namespace: "default",
		Env: map[string]string{},
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Memory: structs.AllocatedMemoryResources{MemoryMB: 128},
				Cpu:    structs.AllocatedCpuResources{CpuShares: 100},
			},
			LinuxResources: &drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 128 << 20, PercentTicks: 0.1},
		},
	}
	for _, c := range change {
		c(cfg)
	}
	must.NoError(e.t, cfg.EncodeConcreteDriverConfig(&config))
	e.t.Cleanup(e.harness.MkAllocDir(cfg, logs))
	return cfg
}

// start starts a task and destroys it with the test.
func (e *env) start(cfg *drivers.TaskConfig) *drivers.TaskHandle {
	e.t.Helper()
	handle, _, err := e.harness.StartTask(cfg)
	must.NoError(e.t, err)
	e.t.Cleanup(func() { _ = e.driver.DestroyTask(cfg.ID, true) })
	return handle
}

// patience is how long a test waits for what comes at once on a machine with nothing
// else to do.
const patience = 3 * time.Minute

// wait returns the task's result.
func (e *env) wait(id string) *drivers.ExitResult {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ch, err := e.harness.WaitTask(ctx, id)
	must.NoError(e.t, err)
	select {
	case result := <-ch:
		must.NotNil(e.t, result)
		return result
	case <-ctx.Done():
		e.t.Fatal("the task did not end")
		return nil
	}
}

// run starts a task, waits for its end and returns what it wrote. The output goes
// to a file, which is complete when the task is gone; Nomad's log collector would
// have to be waited for.
func (e *env) run(config taskconfig.Config, change ...func(*drivers.TaskConfig)) (string, *drivers.ExitResult) {
	e.t.Helper()
	cfg := e.quietTask(config, change...)
	path := filepath.Join(e.dir, cfg.AllocID+".out")
	must.NoError(e.t, os.WriteFile(path, nil, 0o600))
	cfg.StdoutPath, cfg.StderrPath = path, os.DevNull
	e.start(cfg)
	result := e.wait(cfg.ID)
	must.NoError(e.t, e.driver.DestroyTask(cfg.ID, true))
	text, err := os.ReadFile(path)
	must.NoError(e.t, err)
	return string(text), result
}

// end ends a task as Nomad does: it is destroyed when it has ended.
func (e *env) end(cfg *drivers.TaskConfig) {
	e.t.Helper()
	must.NoError(e.t, e.driver.StopTask(cfg.ID, time.Second, "SIGKILL"))
	e.wait(cfg.ID)
	must.NoError(e.t, e.driver.DestroyTask(cfg.ID, true))
}

// logs reads a task's log once its writer has ended.
func (e *env) logs(cfg *drivers.TaskConfig, stream string) string {
	e.t.Helper()
	if err := e.driver.DestroyTask(cfg.ID, true); !errors.Is(err, drivers.ErrTaskNotFound) {
		must.NoError(e.t, err)
	}
	// Nomad's collector does not say when it has read everything, so the log is
	// complete when it has not grown for a while.
	var text []byte
	deadline := time.Now().Add(patience)
	for still, last := 0, -1; still < 20 && time.Now().Before(deadline); {
		text, _ = os.ReadFile(filepath.Join(cfg.TaskDir().LogDir, cfg.Name+"."+stream+".0"))
		if len(text) > 0 && len(text) == last {
			still++
		} else {
			still = 0
		}
		last = len(text)
		<-time.After(40 * time.Millisecond)
	}
	return string(text)
}

// boxPrograms are what the test image is made of.
var boxPrograms = []string{"sh", "cat", "echo", "env", "head", "sleep", "stty", "mktemp", "id", "ls", "touch", "stat", "dd", "seq", "true", "pwd", "hostname", "mknod", "tail", "readlink", "nproc", "chmod", "grep", "rm", "mv", "ln", "mount", "umount"}

// testArchive is the test image, made once.
func testArchive(t *testing.T) []byte {
	t.Helper()
	archive, err := builtTestImage()
	must.NoError(t, err)
	return archive
}

var builtTestImage = sync.OnceValues(func() ([]byte, error) {
	var archive bytes.Buffer
	err := buildTestImage(&archive, testImage)
	return archive.Bytes(), err
})

// boxFiles are the programs and what they need, found once.
var boxFiles = sync.OnceValues(func() (map[string]testimage.File, error) {
	return testimage.HostPrograms(context.Background(), boxPrograms...)
})

func buildTestImage(archive io.Writer, name string) error {
	programs, err := boxFiles()
	if err != nil {
		return err
	}
	files := withUsers(programs)
	// No two images share a layer, so that each has to be fetched.
	files["/etc/image"] = testimage.File{Content: []byte(name)}
	return testimage.Build(archive, name, files, ispec.ImageConfig{
		Env: []string{"PATH=/bin", "FROM_IMAGE=yes", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12"}, Cmd: []string{"sh", "-c", "echo from the image"},
	})
}

// boxLayer is the lowest layer of images that tests add theirs to.
var boxLayer = sync.OnceValues(func() ([]byte, error) {
	programs, err := boxFiles()
	if err != nil {
		return nil, err
	}
	return testimage.Layer(withUsers(programs))
})

// withUsers adds what users need.
func withUsers(programs map[string]testimage.File) map[string]testimage.File {
	files := maps.Clone(programs)
	files["/tmp"] = testimage.File{Mode: 0o777 | fs.ModeSticky}
	files["/etc/passwd"] = testimage.File{Content: []byte("root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n")}
	files["/etc/group"] = testimage.File{Content: []byte("root:x:0:\napp:x:1000:\nvideo:x:44:app\nextra:x:77:\n")}
	return files
}

// programs are those of this repository that tests run, by package, each built once.
var programs sync.Map

// goProgram returns one of them, such as "plugin/nomad-gpu-self". A task gets a copy.
func goProgram(t *testing.T, pkg string) string {
	t.Helper()
	build, _ := programs.LoadOrStore(pkg, sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "p") // TestMain removes it
		if err != nil {
			return "", err
		}
		path, err := testimage.BuildGo(context.Background(), dir, "github.com/nomad-gpu/nomad-gpu/"+pkg)
		return path, errors.Join(err, os.Chmod(dir, 0o755))
	}))
	path, err := build.(func() (string, error))()
	must.NoError(t, err)
	return path
}

// lines returns the lines of what a task wrote.
func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

func itoa(n int) string { return strconv.Itoa(n) }

// eventually waits until check succeeds.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(check), wait.Timeout(patience), wait.Gap(20*time.Millisecond)), must.Sprint(what))
}

func (e *env) waitForLog(cfg *drivers.TaskConfig, text string) {
	e.t.Helper()
	eventually(e.t, "log holds "+text, func() bool {
		log, _ := os.ReadFile(filepath.Join(cfg.TaskDir().LogDir, cfg.Name+".stdout.0"))
		return strings.Contains(string(log), text)
	})
}

// trap answers a signal with an exit code of its own.
const trap = `trap 'echo got it; exit 42' USR1; trap 'exit 43' TERM; echo ready; while true; do sleep 0.05; done`

// containers lists what containerd holds.
func (e *env) containers() []string {
	e.t.Helper()
	found, err := e.driver.runtime.Find(context.Background(), map[string]string{record.LabelNode: e.node})
	must.NoError(e.t, err)
	var ids []string
	for _, c := range found {
		ids = append(ids, c.ID)
	}
	return ids
}

// processGone reports whether a process runs no more; a zombie runs no more.
func processGone(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
	return err != nil || strings.Contains(string(text), ") Z ")
}

func (e *env) pid(cfg *drivers.TaskConfig) int {
	e.t.Helper()
	t, err := e.driver.tasks.get(cfg.ID)
	must.NoError(e.t, err)
	status, err := t.container.Status(context.Background())
	must.NoError(e.t, err)
	return status.PID
}

// restart replaces the driver by a new one that knows nothing.
func (e *env) restart() {
	e.t.Helper()
	e.driver.Shutdown()
	e.startDriver()
}
