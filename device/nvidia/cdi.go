// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/system/nvdevices"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/system/nvmodules"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// HookCommand is the name under which a binary is run as the hooks of a generated
// spec; its main must then call Hook.
const HookCommand = "nvidia-cdi-hook"

// CDI generates a CDI spec with NVIDIA's own library.
type CDI struct {
	Library nvml.Interface
	Driver  Driver
	Log     hclog.Logger
	// Hook is the path of nvidia-cdi-hook on the host, or of a binary that is it
	// when it is run under the name HookCommand. Toolkits before 1.18 do not know
	// the hooks that NVIDIA's library writes, and no container starts with them.
	Hook string
}

// CDISpec describes GPUs and MIG instances under the given kind, named by UUID.
// One that cannot be described is left out, and the second result says why: the
// others have theirs. Each hook gets an explicit environment: without one it
// would inherit that of the container runtime, which an image can influence.
func (c CDI) CDISpec(kind string, uuids []string) (*specs.Spec, map[string]error, error) {
	// The spec is taken by the container runtime, where a hook that is not there
	// fails every task with a message that few can read.
	if err := unix.Access(c.Hook, unix.X_OK); err != nil {
		return nil, nil, fmt.Errorf("cdi_hook %s cannot be run: %w; leave it out, or say where nvidia-cdi-hook is", c.Hook, err)
	}
	c.makeNodes()
	vendor, class, _ := strings.Cut(kind, "/")
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, nil, fmt.Errorf("name CDI devices by UUID: %w", err)
	}
	lib, err := nvcdi.New(nvcdi.WithLogger(cdiLog{c.Log}), nvcdi.WithNvmlLib(c.Library), nvcdi.WithVendor(vendor), nvcdi.WithClass(class),
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDeviceNamers(namer), nvcdi.WithNVIDIACDIHookPath(filepath.Join(filepath.Dir(c.Hook), HookCommand)),
		nvcdi.WithDriverRoot(c.Driver.root()), nvcdi.WithDevRoot(c.Driver.devRoot()), nvcdi.WithLibrarySearchPaths(c.Driver.LibraryPaths))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare CDI spec: %w", err)
	}
	var devices []specs.Device
	failed := map[string]error{}
	for _, uuid := range uuids {
		one, err := lib.GetDeviceSpecsByID(uuid)
		if err != nil {
			failed[uuid] = fmt.Errorf("describe it for containers: %w", err)
			continue
		}
		devices = append(devices, one...)
	}
	if len(devices) == 0 {
		for _, err := range failed {
			return nil, failed, fmt.Errorf("generate CDI spec: %w", err)
		}
		return nil, nil, errors.New("generate CDI spec: there is no device")
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, nil, fmt.Errorf("generate CDI spec: %w", err)
	}
	generated, err := spec.New(spec.WithDeviceSpecs(devices), spec.WithEdits(*common.ContainerEdits), spec.WithVendor(vendor), spec.WithClass(class))
	if err != nil {
		return nil, nil, fmt.Errorf("generate CDI spec: %w", err)
	}
	raw := generated.Raw()
	c.finish(&raw.ContainerEdits)
	for i := range raw.Devices {
		c.finish(&raw.Devices[i].ContainerEdits)
	}
	// NVIDIA's library leaves out files that it does not find.
	if !slices.ContainsFunc(raw.ContainerEdits.Mounts, func(m *specs.Mount) bool { return strings.HasPrefix(filepath.Base(m.HostPath), "libcuda.so.") }) {
		return nil, nil, fmt.Errorf("generate CDI spec: the driver's libcuda.so is not found below %s; install the driver's CUDA library, or say with driver_root and library_path where it is", c.Driver.root())
	}
	return raw, failed, nil
}

// makeNodes loads the modules and makes the device nodes that a spec needs: after
// a boot nothing may have asked for them yet. What cannot be made is missing in
// the spec, and that is said there.
func (c CDI) makeNodes() {
	log := cdiLog{c.Log}
	modules := nvmodules.New(nvmodules.WithLogger(log), nvmodules.WithRoot(c.Driver.root()))
	for _, module := range []string{"nvidia", "nvidia-uvm"} {
		if err := modules.Load(module); err != nil {
			c.Log.Debug("a kernel module is not loaded", "module", module, "error", err)
		}
	}
	nodes, err := nvdevices.New(nvdevices.WithLogger(log), nvdevices.WithDevRoot(c.Driver.devRoot()))
	if err != nil {
		c.Log.Debug("device nodes are not made", "error", err)
		return
	}
	for _, node := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		if err := nodes.CreateNVIDIADevice(node); err != nil {
			c.Log.Debug("a device node is not made", "node", node, "error", err)
		}
	}
}

// mpsFiles are what NVIDIA's specs bring of MPS: programs with which a task could
// change its neighbors' limits, and a daemon's sockets that are none of ours.
var mpsFiles = []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-mps"}

// finish gives the hooks a program and an environment, and takes out what a task
// must not have.
func (c CDI) finish(edits *specs.ContainerEdits) {
	for _, hook := range edits.Hooks {
		hook.Path = c.Hook
		if filepath.Base(c.Hook) == "nvidia-ctk" {
			hook.Args = slices.Concat([]string{"nvidia-ctk", "hook"}, hook.Args[1:])
		}
		hook.Env = append(slices.DeleteFunc(hook.Env, func(entry string) bool { return strings.HasPrefix(entry, "PATH=") }),
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	edits.Mounts = slices.DeleteFunc(edits.Mounts, func(m *specs.Mount) bool { return slices.Contains(mpsFiles, filepath.Base(m.HostPath)) })
}

// Stands is the GPU or MIG instance of an operator's CDI device: nvidia-ctk can name
// them by UUID.
func (c CDI) Stands(d specs.Device) string { return d.Name }

// CheckCDI reports faults of a spec on this machine: missing parts that a CUDA program
// cannot do without, and paths that are gone. Names are those of some of its
// devices.
func (c CDI) CheckCDI(s *specs.Spec, names []string) error {
	edits := []specs.ContainerEdits{s.ContainerEdits}
	for _, d := range s.Devices {
		if slices.Contains(names, d.Name) {
			edits = append(edits, d.ContainerEdits)
		}
	}
	nodes := map[string]bool{}
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			nodes[filepath.Base(n.Path)] = true
			if err := checkNode(n); err != nil {
				return err
			}
		}
		for _, m := range e.Mounts {
			if !exists(m.HostPath) {
				return fmt.Errorf("%s, which containers are to get, is gone", m.HostPath)
			}
		}
		for _, h := range e.Hooks {
			if err := unix.Access(h.Path, unix.X_OK); err != nil {
				return fmt.Errorf("its hook %s cannot be run: %w", h.Path, err)
			}
		}
	}
	for _, needed := range []string{"nvidiactl", "nvidia-uvm"} {
		if !nodes[needed] {
			return fmt.Errorf("it has no device node %s, without which no CUDA program works; see whether the kernel module is loaded", needed)
		}
	}
	return nil
}

func checkNode(n *specs.DeviceNode) error {
	path := n.HostPath
	if path == "" {
		path = n.Path
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("device node %s, which containers are to get, is gone", path)
	}
	if info.Mode()&os.ModeCharDevice == 0 {
		return fmt.Errorf("%s, which containers are to get as a device node, is not one", path)
	}
	return nil
}
