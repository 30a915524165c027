// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// toolsImage is an image with a shell, for jobs that the probe cannot play.
const toolsImage = "localhost/tools:1"

// suites are the packages whose tests run on the machine too: they meet the kernel,
// systemd, containerd and runc.
var suites = []string{"driver", "driver/runtime", "driver/spec", "internal/statedir", "internal/agentlog"}

// firstRelease is installed, and nextRelease takes its place: a build after the release,
// which lastRelease replaces.
const firstRelease, nextRelease, lastRelease = "1.0.0", "1.0.0+12.g0123456789ab", "1.0.1"

// payload makes the disk with all that a machine needs of us: /opt/gpu there.
//
//	bin/         nomad, the plugins and the stand-in for NVIDIA's MPS control program
//	containerd/  the newest release
//	images/      archives of images
//	topology.hcl the simulated machine
//
// and what the steps need besides:
//
//	tests/       test programs, and below src/ what they read
//	packages/    three releases of the packages
func payload(ctx context.Context, root, dir string, parts []part) (string, error) {
	files := filepath.Join(dir, "payload")
	for _, sub := range []string{"bin", "images"} {
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
	for _, part := range parts {
		if err := part(ctx, root, files); err != nil {
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
	programs, err := testimage.HostPrograms(ctx, "sh", "sleep", "tail", "cat", "mkdir", "mount")
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

// part adds what only some steps need to the payload's files.
type part func(ctx context.Context, root, files string) error

func testBinaries(ctx context.Context, root, files string) error {
	dir := filepath.Join(files, "tests")
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
	// What those tests would build, had the machine Go.
	sources, err := filepath.Glob(filepath.Join(root, "driver", "testdata", "*", "main.go"))
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("find the programs of the driver's tests: %d, %w", len(sources), err)
	}
	programs := []string{"plugin/nomad-driver-containerd", "device/sim/nvidia-cuda-mps-control", "e2e/mpsgate"}
	for _, source := range sources {
		programs = append(programs, "driver/testdata/"+filepath.Base(filepath.Dir(source)))
	}
	for _, program := range programs {
		if _, err := testimage.BuildGo(ctx, filepath.Join(dir, "programs"), "github.com/nomad-gpu/nomad-gpu/"+program); err != nil {
			return err
		}
	}
	return nil
}

// packages makes Debian's packages as a release does, of the programs that are there.
// The releases differ in their numbers only.
func packages(ctx context.Context, root, files string) error {
	dir := filepath.Join(files, "packages")
	for _, version := range []string{firstRelease, nextRelease, lastRelease} {
		if err := run(ctx, filepath.Join(root, "internal", "release"), "go", "run", ".", "-only", "deb", "-version", version,
			"-arch", runtime.GOARCH, "-bin", filepath.Join(root, "bin"), "-out", dir); err != nil {
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
