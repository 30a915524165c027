// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
)

const driverLibraries = "usr/lib/x86_64-linux-gnu"

// driverTree is a directory into which a driver was installed, with the device nodes
// of one GPU. Its libraries are empty files: no program here loads them.
func driverTree(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: programs of any user must reach it.
	root, err := os.MkdirTemp("/var/tmp", "driver-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for _, dir := range []string{"", driverLibraries, "usr/bin", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, library := range []string{"libcuda.so", "libnvidia-ml.so"} {
		touch(t, filepath.Join(root, driverLibraries, library+".580.95.05"))
		if err := os.Symlink(library+".580.95.05", filepath.Join(root, driverLibraries, library+".1")); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
		touch(t, filepath.Join(root, "usr/bin", program))
	}
	const uvm = 510 // the kernel gives it any
	for name, number := range map[string]uint64{"nvidiactl": unix.Mkdev(probe.NVIDIAMajor, probe.ControlMinor), "nvidia0": unix.Mkdev(probe.NVIDIAMajor, 0),
		"nvidia-uvm": unix.Mkdev(uvm, 0), "nvidia-uvm-tools": unix.Mkdev(uvm, 1)} {
		path := filepath.Join(root, "dev", name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
}

// A spec that NVIDIA's library makes of a driver outside the default paths, whose
// hooks are the plugin's own binary: no toolkit is on the machine. Where a file of
// the driver goes the device has a fault that names it, and its specs are made again
// when the file is back.
func TestContainersNeedNoToolkit(t *testing.T) {
	t.Parallel()
	root := driverTree(t)
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: fmt.Sprintf("driver_root = %q\n health {\n interval = \"200ms\"\n }\n", root)})
	alloc := run(t, ctx, c, jobSpec{id: "hooked", devices: `device "nvidia/gpu" {}`})
	if open := report(t, ctx, c, alloc).Opens(); len(open) != 1 {
		t.Errorf("the task opens GPUs %v", open)
	}
	pid, err := c.Nodes[0].WaitPID(ctx, 0, "gpuprobe")
	if err != nil {
		t.Fatal(err)
	}
	inside := fmt.Sprintf("/proc/%d/root", pid)
	if link, err := os.Readlink(filepath.Join(inside, driverLibraries, "libcuda.so")); err != nil || link != "libcuda.so.1" {
		t.Errorf("the hook create-symlinks left libcuda.so as %q, %v", link, err)
	}
	if conf, err := filepath.Glob(filepath.Join(inside, "etc/ld.so.conf.d/*nvcr*.conf")); err != nil || len(conf) == 0 {
		t.Errorf("the hook update-ldcache left %q, %v", conf, err)
	}
	if _, err := os.Lstat(filepath.Join(inside, "usr/bin/nvidia-cuda-mps-control")); err == nil {
		t.Error("the container has the MPS control program")
	}
	stop(t, ctx, c, "hooked")

	cuda := filepath.Join(root, driverLibraries, "libcuda.so.580.95.05")
	if err := os.Remove(cuda); err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[0].WaitNode(ctx, func(n *api.Node) bool {
		return strings.Contains(sickness(n), "libcuda.so is not found below "+root)
	}); err != nil {
		t.Fatal(err)
	}
	touch(t, cuda) // it is tried again within a minute
	if err := c.Nodes[0].WaitNode(ctx, cluster.AllHealthy); err != nil {
		t.Fatal(err)
	}
	report(t, ctx, c, run(t, ctx, c, jobSpec{id: "again", devices: `device "nvidia/gpu" {}`}))
}

// sickness is why the node's first unhealthy instance is.
func sickness(n *api.Node) string {
	for _, group := range n.NodeResources.Devices {
		for _, instance := range group.Instances {
			if !instance.Healthy {
				return instance.HealthDescription
			}
		}
	}
	return ""
}
