package nvidia_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
)

func TestCDISpecNeedsItsHook(t *testing.T) {
	r := newRig(t, "gpu { model = \"H100\" }\n")
	hook := t.TempDir() + "/nvidia-cdi-hook"
	_, err := nvidia.CDI{Library: r.machine, Log: hclog.NewNullLogger(), Hook: hook}.CDISpec("ours/gpu")
	if err == nil || !strings.Contains(err.Error(), "cdi_hook "+hook+" cannot be run: no such file or directory") {
		t.Errorf("got %v", err)
	}
}
