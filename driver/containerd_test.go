package driver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
)

// containerd is a containerd of a test's own: socket, root and state lie in a
// temporary directory.
type containerd struct {
	t      *testing.T
	dir    string
	binary string
	cmd    *boundProcess
}

// boundProcess is a process that dies with this one.
type boundProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// startBound starts a process. The kernel kills it when the thread that started
// it ends, which in Go may be long before the program does; so that thread stays.
func startBound(t *testing.T, cmd *exec.Cmd) *boundProcess {
	t.Helper()
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
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *boundProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// containerdBinaries returns the containerd of PATH and, with
// CONTAINERD_BIN_DIR, the one there.
func containerdBinaries(t *testing.T) map[string]string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("containerd needs root")
	}
	found := map[string]string{}
	if path, err := exec.LookPath("containerd"); err == nil {
		found["path"] = path
	}
	if dir := os.Getenv("CONTAINERD_BIN_DIR"); dir != "" {
		if path := filepath.Join(dir, "containerd"); fileExists(path) {
			found["bin_dir"] = path
		}
	}
	if len(found) == 0 {
		t.Skip("there is no containerd on PATH or in CONTAINERD_BIN_DIR")
	}
	return found
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startContainerd starts the given containerd and ends it with the test.
func startContainerd(t *testing.T, binary string) *containerd {
	t.Helper()
	// Not t.TempDir: its name is too long for a socket, and mounts may linger.
	dir, err := os.MkdirTemp("", "ctrd")
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{t: t, dir: dir}
	c.use(binary)
	c.start()
	t.Cleanup(func() {
		c.sweep()
		c.kill()
		_ = exec.Command("sh", "-c", "grep -o ' "+dir+"[^ ]*' /proc/self/mounts | xargs -r umount -l").Run()
		_ = os.RemoveAll(dir)
	})
	return c
}

// use makes the next start run another binary on the same data.
func (c *containerd) use(binary string) {
	c.t.Helper()
	version := 3
	if out, err := exec.Command(binary, "--version").Output(); err == nil && strings.Contains(string(out), " 1.") {
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
		c.t.Fatal(err)
	}
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "s.sock") }

// start runs containerd and waits until it answers.
func (c *containerd) start() {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(c.binary, "-c", filepath.Join(c.dir, "config.toml"))
	// The containerd of a directory must find the shim of that directory.
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(c.binary)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	c.cmd = startBound(c.t, cmd)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cl, err := client.New(c.socket())
	if err != nil {
		c.t.Fatal(err)
	}
	defer cl.Close()
	if ok, err := cl.IsServing(ctx); !ok {
		text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
		c.t.Fatalf("containerd does not serve: %v\n%s", err, text)
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
	if c.cmd == nil {
		c.start()
	}
	cl, err := client.New(c.socket(), client.WithDefaultNamespace(testNamespace))
	if err != nil {
		return
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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
