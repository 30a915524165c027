// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

const driverLibraries = "usr/lib/x86_64-linux-gnu"

// driverRoot is a directory into which a driver was installed, as a GPU operator
// does it, with its device nodes.
func driverRoot(t *testing.T, gpus int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	root := t.TempDir()
	for path, text := range map[string]string{
		driverLibraries + "/libcuda.so.580.95.05":      "",
		driverLibraries + "/libnvidia-ml.so.580.95.05": "",
		"usr/bin/nvidia-smi":                           "#!/bin/sh\n",
		"usr/bin/nvidia-cuda-mps-control":              "#!/bin/sh\n",
		"usr/bin/nvidia-cuda-mps-server":               "#!/bin/sh\n",
	} {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"libcuda.so", "libnvidia-ml.so"} {
		if err := os.Symlink(link+".580.95.05", filepath.Join(root, driverLibraries, link+".1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	nodes := map[string]uint32{"nvidiactl": 255, "nvidia-uvm": 1, "nvidia-uvm-tools": 2}
	for n := range gpus {
		nodes[fmt.Sprintf("nvidia%d", n)] = uint32(n)
	}
	for name, minor := range nodes {
		if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func generator(t *testing.T, r *rig, root string) nvidia.CDI {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Survey(); err != nil { // initializes NVML
		t.Fatal(err)
	}
	return nvidia.CDI{Library: r.machine, Driver: nvidia.Driver{Root: root}, Log: hclog.NewNullLogger(), Hook: self}
}

func deviceNames(s *specs.Spec) []string {
	var names []string
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	return names
}

func TestCDISpecNeedsItsHook(t *testing.T) {
	r := newRig(t, "gpu { model = \"H100\" }\n")
	hook := t.TempDir() + "/nvidia-cdi-hook"
	_, _, err := nvidia.CDI{Library: r.machine, Log: hclog.NewNullLogger(), Hook: hook}.CDISpec("ours/gpu", []string{r.uuid(0)})
	if err == nil || !strings.Contains(err.Error(), "cdi_hook "+hook+" cannot be run: no such file or directory") {
		t.Errorf("got %v", err)
	}
}

// The plugin's own binary is every hook of the spec, whatever toolkit the host
// has: all of them run, as the container runtime runs them.
func TestCDISpecHooksRun(t *testing.T) {
	r := newRig(t, h100x3)
	spec, failed, err := generator(t, r, driverRoot(t, 3)).CDISpec("ours/gpu", []string{r.uuid(0), r.uuid(1), r.uuid(2)})
	if err != nil || len(failed) != 0 {
		t.Fatal(err, failed)
	}
	if got := deviceNames(spec); len(got) != 3 || got[2] != r.uuid(2) {
		t.Errorf("devices are %v", got)
	}
	bundle := t.TempDir()
	rootfs := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"etc", "proc/driver/nvidia", "usr/lib/x86_64-linux-gnu", "usr/local/cuda/compat"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := `{"ociVersion":"1.0.0","root":{"path":"rootfs"},"process":{"env":[]}}`
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	hooks := slices.Clone(spec.ContainerEdits.Hooks)
	for _, d := range spec.Devices {
		hooks = append(hooks, d.ContainerEdits.Hooks...)
	}
	names := map[string]bool{}
	for _, h := range hooks {
		names[h.Args[1]] = true
		if h.Args[0] != nvidia.HookCommand || len(h.Env) == 0 || !slices.ContainsFunc(h.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=/usr") }) {
			t.Errorf("hook %q has the environment %q", h.Args, h.Env)
		}
		// These make mounts, for which they need a container; their own help shows
		// that they are known.
		mounts := slices.Contains([]string{"update-ldcache", "disable-device-node-modification", "update-application-profile"}, h.Args[1])
		args := h.Args
		if mounts {
			args = []string{h.Args[0], h.Args[1], "--help"}
		}
		cmd := exec.Cmd{Path: h.Path, Args: args, Env: h.Env, Stdin: strings.NewReader(`{"ociVersion":"1.0.0","id":"c","status":"created","pid":1,"bundle":"` + bundle + `"}`)}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "Unsupported") {
			t.Errorf("hook %q: %v: %s", h.Args, err, out)
		}
	}
	for _, needed := range []string{"create-symlinks", "update-ldcache", "enable-cuda-compat", "disable-device-node-modification"} {
		if !names[needed] {
			t.Errorf("there is no hook %s in %v", needed, names)
		}
	}
	if link, err := os.Readlink(filepath.Join(rootfs, driverLibraries, "libcuda.so")); err != nil || link != "libcuda.so.1" {
		t.Errorf("libcuda.so leads to %q, %v", link, err)
	}
	// One that a later spec may have is no reason for a container not to start.
	unknown := exec.Cmd{Path: hooks[0].Path, Args: []string{nvidia.HookCommand, "of-a-later-release"}, Env: []string{}}
	if out, err := unknown.CombinedOutput(); err != nil {
		t.Errorf("an unknown hook: %v: %s", err, out)
	}
	if err := (nvidia.CDI{}).CheckCDI(spec, deviceNames(spec)); err != nil {
		t.Errorf("it is said to be broken: %v", err)
	}
}

// The toolkit's other program has the hooks under a command of its own, and every hook
// gets a PATH of ours, whatever one it had.
func TestHooksOfTheToolkitsOtherProgram(t *testing.T) {
	r := newRig(t, h100x3)
	g := generator(t, r, driverRoot(t, 3))
	g.Hook = filepath.Join(t.TempDir(), "nvidia-ctk")
	if err := os.WriteFile(g.Hook, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec, _, err := g.CDISpec("ours/gpu", []string{r.uuid(0)})
	if err != nil || len(spec.ContainerEdits.Hooks) == 0 {
		t.Fatal(spec, err)
	}
	for _, h := range spec.ContainerEdits.Hooks {
		paths := slices.DeleteFunc(slices.Clone(h.Env), func(e string) bool { return !strings.HasPrefix(e, "PATH=") })
		if h.Path != g.Hook || len(h.Args) < 3 || h.Args[0] != "nvidia-ctk" || h.Args[1] != "hook" || len(paths) != 1 {
			t.Errorf("%s %q %q", h.Path, h.Args, h.Env)
		}
	}
}

func TestCDISpecLeavesMPSOut(t *testing.T) {
	r := newRig(t, h100x3)
	spec, _, err := generator(t, r, driverRoot(t, 3)).CDISpec("ours/gpu", []string{r.uuid(0)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "mps") || !strings.Contains(string(text), "nvidia-smi") || !strings.Contains(string(text), "libcuda.so.580.95.05") {
		t.Errorf("the spec is %s", text)
	}
}

// Regression: a driver whose libraries were half installed made a spec with which
// tasks started and found no CUDA.
func TestCDISpecNeedsCUDA(t *testing.T) {
	r := newRig(t, h100x3)
	root := driverRoot(t, 3)
	if err := os.Remove(filepath.Join(root, driverLibraries, "libcuda.so.580.95.05")); err != nil {
		t.Fatal(err)
	}
	_, _, err := generator(t, r, root).CDISpec("ours/gpu", []string{r.uuid(0)})
	if err == nil || !strings.Contains(err.Error(), "libcuda.so is not found below "+root) {
		t.Errorf("got %v", err)
	}
}

func TestCDISpecWithoutOneLostGPU(t *testing.T) {
	r := newRig(t, h100x3)
	g := generator(t, r, driverRoot(t, 3))
	r.happen(1, func(c *sim.Condition) { c.Lost = true })
	all := []string{r.uuid(0), r.uuid(1), r.uuid(2)}
	spec, failed, err := g.CDISpec("ours/gpu", all)
	if err != nil {
		t.Fatal(err)
	}
	if got := deviceNames(spec); !slices.Equal(got, []string{r.uuid(0), r.uuid(2)}) || failed[r.uuid(1)] == nil || len(failed) != 1 {
		t.Errorf("devices are %v, failed are %v", got, failed)
	}
	if spec, failed, err := g.CDISpec("ours/gpu", all[1:2]); err == nil || failed[r.uuid(1)] == nil {
		t.Errorf("of a lost GPU alone: %v, %v, %v", spec, failed, err)
	}
}

func TestCheckCDI(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	node := func(name, host string) *specs.DeviceNode {
		return &specs.DeviceNode{Path: "/dev/" + name, HostPath: host}
	}
	good := []*specs.DeviceNode{node("nvidiactl", "/dev/null"), node("nvidia-uvm", "/dev/zero")}
	for name, tc := range map[string]struct {
		common, device specs.ContainerEdits
		says           string
	}{
		"well":               {specs.ContainerEdits{DeviceNodes: good}, specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/null"}}}, ""},
		"all per device":     {specs.ContainerEdits{}, specs.ContainerEdits{DeviceNodes: good}, ""},
		"no uvm":             {specs.ContainerEdits{DeviceNodes: good[:1]}, specs.ContainerEdits{}, "no device node nvidia-uvm"},
		"no control node":    {specs.ContainerEdits{DeviceNodes: good[1:]}, specs.ContainerEdits{}, "no device node nvidiactl"},
		"node gone":          {specs.ContainerEdits{DeviceNodes: good}, specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{node("nvidia0", dir+"/gone")}}, dir + "/gone"},
		"a file for a node":  {specs.ContainerEdits{DeviceNodes: good}, specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{node("nvidia0", dir+"/file")}}, "is not one"},
		"library gone":       {specs.ContainerEdits{DeviceNodes: good, Mounts: []*specs.Mount{{HostPath: dir + "/lib"}}}, specs.ContainerEdits{}, dir + "/lib"},
		"library there":      {specs.ContainerEdits{DeviceNodes: good, Mounts: []*specs.Mount{{HostPath: dir + "/file"}}}, specs.ContainerEdits{}, ""},
		"hook gone":          {specs.ContainerEdits{DeviceNodes: good, Hooks: []*specs.Hook{{Path: dir + "/hook"}}}, specs.ContainerEdits{}, "hook " + dir + "/hook cannot be run"},
		"hook not a program": {specs.ContainerEdits{DeviceNodes: good, Hooks: []*specs.Hook{{Path: dir + "/file"}}}, specs.ContainerEdits{}, "cannot be run"},
	} {
		spec := &specs.Spec{ContainerEdits: tc.common, Devices: []specs.Device{{Name: "GPU-1", ContainerEdits: tc.device},
			{Name: "GPU-2", ContainerEdits: specs.ContainerEdits{Mounts: []*specs.Mount{{HostPath: dir + "/of-another"}}}}}}
		err := nvidia.CDI{}.CheckCDI(spec, []string{"GPU-1"})
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

func TestDriverIsFoundWhereItLies(t *testing.T) {
	root, extra := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(root + "/usr/lib64/libcuda.so.1")
	write(root + "/usr/bin/nvidia-smi")
	if got := (nvidia.Driver{Root: "/"}).LibraryPath(); got != "" {
		t.Errorf("in the usual place: %q", got)
	}
	if got := (nvidia.Driver{Root: root}).LibraryPath(); got != root+"/usr/lib64" {
		t.Errorf("below a root: %q", got)
	}
	if got := (nvidia.Driver{Root: "/", LibraryPaths: []string{extra}}).LibraryPath(); !strings.HasPrefix(got, extra) {
		t.Errorf("with a path: %q", got)
	}
	for name, want := range map[string]string{"nvidia-smi": root + "/usr/bin/nvidia-smi", "/opt/nvidia-smi": "/opt/nvidia-smi", "nvidia-other": "nvidia-other"} {
		if got := (nvidia.Driver{Root: root}).Program(name); got != want {
			t.Errorf("program %s is %s, want %s", name, got, want)
		}
	}
	if got := (nvidia.Driver{Root: "/"}).Program("nvidia-smi"); got != "nvidia-smi" {
		t.Errorf("in the usual place: %s", got)
	}
}
