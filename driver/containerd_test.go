// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
)

// containerd is a containerd of the tests' own: socket, root and state lie in a
// temporary directory.
type containerd struct {
	dir    string
	binary string
	cmd    *boundProcess
	// shared is whether tests use it together. Then what is in it is told apart
	// by node, and no test may kill it, empty it or collect its images.
	shared bool
	// restarts are those that go on beside the test.
	restarts sync.WaitGroup
}

// boundProcess is a process that dies with this one.
type boundProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// startBound starts a process. The kernel kills it when the thread that started
// it ends, which in Go may be long before the program does; so that thread stays.
func startBound(cmd *exec.Cmd) (*boundProcess, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &boundProcess{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return p, <-started
}

func (p *boundProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// containerdBinaries returns, by version, the containerd of PATH and, with
// CONTAINERD_BIN_DIR, the one there.
func containerdBinaries(t *testing.T) map[string]string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("containerd needs root")
	}
	found := map[string]string{}
	for _, binary := range []string{containerdOnPath(), containerdInBinDir()} {
		if binary != "" {
			found["containerd"+versionOf(t, binary)] = binary
		}
	}
	if len(found) == 0 {
		t.Skip("there is no containerd on PATH or in CONTAINERD_BIN_DIR")
	}
	return found
}

func containerdOnPath() string {
	path, _ := exec.LookPath("containerd")
	return path
}

func containerdInBinDir() string {
	path := filepath.Join(os.Getenv("CONTAINERD_BIN_DIR"), "containerd")
	if !filepath.IsAbs(path) || !fileExists(path) {
		return ""
	}
	return path
}

// versions are those of containerds, each asked once.
var versions sync.Map

// versionOf returns a containerd's major and minor version, such as "2.4".
func versionOf(t *testing.T, binary string) string {
	t.Helper()
	if known, ok := versions.Load(binary); ok {
		return known.(string)
	}
	out, err := exec.Command(binary, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`\bv?(\d+\.\d+)\.\d+`).FindSubmatch(out)
	if version == nil {
		t.Fatalf("%s --version says %q", binary, out)
	}
	versions.Store(binary, string(version[1]))
	return string(version[1])
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startContainerd starts the given containerd and ends it with the test.
func startContainerd(t *testing.T, binary string) *containerd {
	t.Helper()
	c := newContainerd(t, binary)
	t.Cleanup(c.remove)
	return c
}

// newContainerd starts a containerd that holds the test image; remove ends it.
func newContainerd(t *testing.T, binary string) *containerd {
	t.Helper()
	// Not t.TempDir: its name is too long for sockets, and mounts may linger.
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{dir: dir}
	c.use(t, binary)
	c.start(t)
	c.importImage(t, testArchive(t))
	return c
}

// remove ends containerd and all that runs in it.
func (c *containerd) remove() {
	c.sweep()
	c.kill()
	_ = exec.Command("sh", "-c", "grep -o ' "+c.dir+"[^ ]*' /proc/self/mounts | xargs -r umount -l").Run()
	_ = os.RemoveAll(c.dir)
}

// sharedContainerds are those that tests use together, by binary. TestMain ends
// them.
var sharedContainerds = struct {
	mu       sync.Mutex
	byBinary map[string]*containerd
}{byBinary: map[string]*containerd{}}

func sharedContainerd(t *testing.T, binary string) *containerd {
	t.Helper()
	sharedContainerds.mu.Lock()
	defer sharedContainerds.mu.Unlock()
	c := sharedContainerds.byBinary[binary]
	if c == nil {
		c = newContainerd(t, binary)
		c.shared = true
		sharedContainerds.byBinary[binary] = c
	}
	return c
}

func removeSharedContainerds() {
	for _, c := range sharedContainerds.byBinary {
		c.remove()
	}
}

// use makes the next start run another binary on the same data.
func (c *containerd) use(t *testing.T, binary string) {
	t.Helper()
	version := 3
	if strings.HasPrefix(versionOf(t, binary), "1.") {
		version = 2
	}
	c.binary = binary
	config := fmt.Sprintf(`version = %d
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri","io.containerd.cri.v1.images","io.containerd.cri.v1.runtime","io.containerd.nri.v1.nri","io.containerd.internal.v1.restart","io.containerd.monitor.container.v1.restart"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`, version, filepath.Join(c.dir, "root"), filepath.Join(c.dir, "state"), c.socket(), c.socket()+".ttrpc")
	if err := os.WriteFile(filepath.Join(c.dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "s.sock") }

// start runs containerd and waits until it answers.
func (c *containerd) start(t *testing.T) {
	t.Helper()
	if err := c.run(); err != nil {
		text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
		t.Fatalf("%v\n%s", err, text)
	}
}

func (c *containerd) run() error {
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.binary, "-c", filepath.Join(c.dir, "config.toml"))
	// The containerd of a directory must find the shim of that directory.
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(c.binary)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	if c.cmd, err = startBound(cmd); err != nil {
		return err
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if ok, err := cl.IsServing(ctx); !ok {
		return fmt.Errorf("containerd does not serve: %w", err)
	}
	return nil
}

// client is a plain client, as ctr would be.
func (c *containerd) client() (*client.Client, error) {
	return client.New(c.socket(), client.WithDefaultNamespace(testNamespace))
}

func (c *containerd) importImage(t *testing.T, archive []byte) {
	t.Helper()
	cl, err := c.client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := cl.Import(context.Background(), bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
}

// kill ends containerd as a crash would; shims and tasks stay.
func (c *containerd) kill() {
	if c.cmd == nil {
		return
	}
	c.cmd.kill()
	c.cmd = nil
}

// sweep removes what a failed test left, so that no shim outlives the tests.
func (c *containerd) sweep() {
	if c.cmd == nil && c.run() != nil {
		return
	}
	cl, err := c.client()
	if err != nil {
		return
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	containers, err := cl.Containers(ctx)
	if err != nil {
		return
	}
	for _, container := range containers {
		if task, err := container.Task(ctx, nil); err == nil {
			_, _ = task.Delete(ctx, client.WithProcessKill)
		}
		_ = container.Delete(ctx, client.WithSnapshotCleanup)
	}
}
