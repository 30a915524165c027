package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// toolsImage is an image with a shell, for jobs that the probe cannot play.
const toolsImage = "localhost/tools:1"

// suites are the packages whose tests run on the machine too: they meet the kernel,
// systemd, containerd and runc.
var suites = []string{"driver", "driver/runtime", "driver/spec", "internal/statedir", "internal/agentlog"}

// testPrograms are what those tests would build, had the machine Go.
var testPrograms = []string{"driver/testdata/dial", "driver/testdata/listen", "plugin/nomad-driver-containerd"}

// payload makes the disk with all that a machine needs of us: /opt/gpu there.
//
//	bin/         nomad, the plugins and the stand-in for NVIDIA's MPS control program
//	containerd/  the newest release
//	images/      archives of images
//	topology.hcl the simulated machine
//	tests/       test programs, and below src/ what they read
func payload(ctx context.Context, root, dir string, withSuites bool) (string, error) {
	files := filepath.Join(dir, "payload")
	for _, sub := range []string{"bin", "images", "tests/programs"} {
		if err := os.MkdirAll(filepath.Join(files, sub), 0o755); err != nil {
			return "", err
		}
	}
	bin := filepath.Join(root, "bin")
	copies := [][]string{
		{filepath.Join(bin, "nomad-device-gpu"), "bin/"},
		{filepath.Join(bin, "nomad-driver-containerd"), "bin/"},
		{filepath.Join(bin, "e2e", "nomad"), "bin/nomad"},
		{filepath.Join(bin, "e2e", "nvidia-cuda-mps-control"), "bin/"},
		{filepath.Join(bin, "e2e", "containerd") + "/.", "containerd"},
	}
	for _, c := range copies {
		if err := run(ctx, root, "cp", "-rL", c[0], filepath.Join(files, c[1])); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(files, "topology.hcl"), []byte(topology), 0o644); err != nil {
		return "", err
	}
	if err := images(ctx, bin, filepath.Join(files, "images")); err != nil {
		return "", err
	}
	if withSuites {
		if err := testBinaries(ctx, root, filepath.Join(files, "tests")); err != nil {
			return "", err
		}
	}
	disk := filepath.Join(dir, "payload.img")
	if err := run(ctx, dir, "truncate", "-s", "2G", disk); err != nil {
		return "", err
	}
	return disk, run(ctx, dir, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", files, disk)
}

func images(ctx context.Context, bin, dir string) error {
	probe, err := cluster.ImageArchive(bin)
	if err != nil {
		return err
	}
	programs, err := testimage.HostPrograms(ctx, "sh", "sleep", "tail", "cat")
	if err != nil {
		return err
	}
	var tools bytes.Buffer
	if err := testimage.Build(&tools, toolsImage, programs, ispec.ImageConfig{Env: []string{"PATH=/bin"}}); err != nil {
		return err
	}
	for name, archive := range map[string][]byte{"probe.tar": probe, "tools.tar": tools.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, name), archive, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func testBinaries(ctx context.Context, root, dir string) error {
	for _, suite := range suites {
		source := filepath.Join(dir, "src", suite)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := run(ctx, root, "go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(source, "suite.test"), "./"+suite); err != nil {
			return err
		}
		testdata := filepath.Join(root, suite, "testdata")
		if _, err := os.Stat(testdata); err == nil {
			if err := run(ctx, root, "cp", "-r", testdata, source); err != nil {
				return err
			}
		}
	}
	for _, program := range testPrograms {
		if _, err := testimage.BuildGo(ctx, filepath.Join(dir, "programs"), "github.com/nomad-gpu/nomad-gpu/"+program); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
