package nvidia

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// CDI generates a CDI spec with NVIDIA's own library.
type CDI struct {
	Library nvml.Interface
	Log     hclog.Logger
	// Hook is the path of nvidia-cdi-hook on the host.
	Hook string
}

// CDISpec describes every GPU and MIG instance under the given kind, named by
// UUID. Each hook gets an explicit environment: without one it would inherit
// that of the container runtime, which an image can influence.
func (c CDI) CDISpec(kind string) (*specs.Spec, error) {
	// The spec is taken by the container runtime, where a hook that is not there
	// fails every task with a message that few can read.
	if err := unix.Access(c.Hook, unix.X_OK); err != nil {
		return nil, fmt.Errorf("cdi_hook %s cannot be run: %w; install the NVIDIA container toolkit, or say where its nvidia-cdi-hook is", c.Hook, err)
	}
	vendor, class, _ := strings.Cut(kind, "/")
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, fmt.Errorf("name CDI devices by UUID: %w", err)
	}
	lib, err := nvcdi.New(nvcdi.WithLogger(cdiLog{c.Log}), nvcdi.WithNvmlLib(c.Library), nvcdi.WithVendor(vendor), nvcdi.WithClass(class),
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDeviceNamers(namer), nvcdi.WithNVIDIACDIHookPath(c.Hook))
	if err != nil {
		return nil, fmt.Errorf("prepare CDI spec: %w", err)
	}
	generated, err := lib.GetSpec()
	if err != nil {
		return nil, fmt.Errorf("generate CDI spec: %w", err)
	}
	spec := generated.Raw()
	fixHooks(&spec.ContainerEdits)
	for i := range spec.Devices {
		fixHooks(&spec.Devices[i].ContainerEdits)
	}
	return spec, nil
}

func fixHooks(edits *specs.ContainerEdits) {
	for _, hook := range edits.Hooks {
		if len(hook.Env) == 0 {
			hook.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		}
	}
}
