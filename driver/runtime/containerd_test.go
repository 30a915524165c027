package runtime

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// patience is how long a test waits for what comes at once on a quiet machine.
const patience = 3 * time.Minute

// forEachContainerd runs a test with a Runtime on a containerd of its own, of each
// release that there is.
func forEachContainerd(t *testing.T, test func(t *testing.T, r *Runtime)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("containerd needs root")
	}
	binaries := []string{filepath.Join(os.Getenv("CONTAINERD_BIN_DIR"), "containerd")}
	if onPath, err := exec.LookPath("containerd"); err == nil {
		binaries = append(binaries, onPath)
	}
	t.Parallel()
	ran := false
	for _, binary := range binaries {
		version, err := exec.Command(binary, "--version").Output()
		if err != nil {
			continue
		}
		ran = true
		name := strings.Fields(string(version))[2]
		t.Run("containerd"+name, func(t *testing.T) {
			t.Parallel()
			test(t, startContainerd(t, binary, strings.HasPrefix(strings.TrimPrefix(name, "v"), "1.")))
		})
	}
	if !ran {
		t.Skip("there is no containerd on PATH or in CONTAINERD_BIN_DIR")
	}
}

// startContainerd starts a containerd that ends with the test.
func startContainerd(t *testing.T, binary string, first bool) *Runtime {
	t.Helper()
	dir, err := os.MkdirTemp("", "r") // t.TempDir is too long for sockets
	must.NoError(t, err)
	socket := filepath.Join(dir, "s.sock")
	config := fmt.Sprintf("version = %d\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\",\"io.containerd.cri.v1.images\",\"io.containerd.cri.v1.runtime\",\"io.containerd.nri.v1.nri\"]\n[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n",
		map[bool]int{true: 2, false: 3}[first], filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket, socket+".ttrpc")
	must.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600))
	cmd := exec.Command(binary, "-c", filepath.Join(dir, "config.toml"))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	must.NoError(t, cmd.Start())
	r, err := New(Config{Socket: socket, Namespace: filepath.Base(dir), Owner: dir, Snapshotter: "overlayfs", FIFODir: filepath.Join(dir, "fifos"),
		MaxImageBytes: 1 << 30, MaxUnpackedBytes: 1 << 30})
	must.NoError(t, err)
	t.Cleanup(func() {
		all, _ := r.Owned(context.Background())
		for _, c := range all {
			_ = c.End(context.Background())
			_ = c.Remove(context.Background())
		}
		_ = r.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = exec.Command("sh", "-c", "grep -o ' "+dir+"[^ ]*' /proc/self/mounts | xargs -r umount -l").Run()
		_ = os.RemoveAll(dir)
	})
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		_, err := r.Version(t.Context())
		return err
	}), wait.Timeout(patience), wait.Gap(50*time.Millisecond)))
	return r
}

// boxArchive is an image with a shell, whose digest depends on what is in it.
func boxArchive(t *testing.T, content string) []byte {
	t.Helper()
	files, err := testimage.HostPrograms(t.Context(), "sh", "cat", "echo", "sleep", "stty", "true")
	must.NoError(t, err)
	files["/etc/image"] = testimage.File{Content: []byte(content)}
	files["/etc/passwd"] = testimage.File{Content: []byte("root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n")}
	files["/etc/group"] = testimage.File{Content: []byte("root:x:0:\napp:x:1000:\nextra:x:77:\n")}
	var archive bytes.Buffer
	must.NoError(t, testimage.Build(&archive, "example.test/box:1", files, ispec.ImageConfig{Env: []string{"PATH=/bin"}}))
	return archive.Bytes()
}

// box imports the image.
func box(t *testing.T, r *Runtime, content string) Image {
	t.Helper()
	image, err := r.Import(t.Context(), bytes.NewReader(boxArchive(t, content)), "")
	must.NoError(t, err)
	return image
}
