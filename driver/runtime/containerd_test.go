// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// binary is a containerd of this machine.
type binary struct{ path, version string }

// binaries are all of them.
var binaries = sync.OnceValue(func() (found []binary) {
	paths := []string{"containerd"}
	if dir := os.Getenv("CONTAINERD_BIN_DIR"); dir != "" {
		paths = append(paths, filepath.Join(dir, "containerd"))
	}
	for _, path := range paths {
		if version, err := exec.Command(path, "--version").Output(); err == nil {
			found = append(found, binary{path, strings.Fields(string(version))[2]})
		}
	}
	return found
})

// forEachContainerd runs a test with a Runtime on a containerd of its own, of each
// release that there is.
func forEachContainerd(t *testing.T, test func(t *testing.T, r *Runtime)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("containerd needs root")
	}
	if len(binaries()) == 0 {
		t.Skip("there is no containerd on PATH or in CONTAINERD_BIN_DIR")
	}
	t.Parallel()
	for _, b := range binaries() {
		t.Run("containerd"+b.version, func(t *testing.T) {
			t.Parallel()
			test(t, startContainerd(t, b.path, strings.HasPrefix(strings.TrimPrefix(b.version, "v"), "1.")))
		})
	}
}

// drawn reports whether a case is tried with this test's containerd: each is tried with
// one, moved by NOMAD_GPU_DRAW, and with every one under NOMAD_GPU_FULL=1.
func drawn(t *testing.T, name string) bool {
	t.Helper()
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		return true
	}
	draw, _ := strconv.Atoi(os.Getenv("NOMAD_GPU_DRAW"))
	of := binaries()[(int(crc32.ChecksumIEEE([]byte(name)))+draw)%len(binaries())]
	return strings.HasSuffix(t.Name(), "/containerd"+of.version)
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
