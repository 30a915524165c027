// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// Diagnose checks what of a node is this plugin's: the configuration of the agent at
// path, the drivers, each GPU with the faults that a running plugin knows of, the
// program of MPS and the metrics. An empty path stands for the defaults. It changes
// nothing.
func Diagnose(ctx context.Context, path string, report *doctor.Report) {
	area := report.Area("GPUs")
	c, err := config.Read(path)
	if err != nil {
		area.Fail("configuration", "correct it; "+config.PluginName+" validate checks it again", "%v", err)
		return
	}
	if !c.Enabled {
		area.Warn("configuration", "set enabled = true, or take the block out", "the plugin is disabled in %s", path)
		return
	}
	if path != "" {
		area.OK("configuration", "%s is valid", path)
	}
	i, err := Of(c)
	if err != nil {
		area.Fail("driver", "install or load the vendor's driver; nvidia-smi, rocm-smi or lspci show what the machine has", "%v", err)
		return
	}
	area.OK("driver", "%s", i.drivers())
	for _, warning := range i.Warnings {
		area.Warn("configuration", "change the rules of "+path, "%s", warning)
	}
	diagnoseState(c, area)
	for _, d := range i.Devices {
		d.diagnose(area)
	}
	diagnoseMPS(c, area, i)
	diagnoseMetrics(ctx, c, area)
}

func (i Inventory) drivers() string {
	text := fmt.Sprintf("%d devices", len(i.Devices))
	if i.DriverVersion != "" {
		text += fmt.Sprintf("; NVIDIA's driver %s with CUDA %s", i.DriverVersion, i.CUDAVersion)
	}
	if i.Simulated {
		text += "; simulated"
	}
	return text
}

// diagnoseState tells whether a plugin has written its state: without that, faults
// and cordons are not known here.
func diagnoseState(c *config.Config, area *doctor.Area) {
	written, err := os.ReadDir(filepath.Join(c.StateDir, "gpus"))
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(written) == 0:
		area.Warn("plugin", "start Nomad with a block plugin \""+config.PluginName+"\"; what is said of GPUs here is without faults and cordons",
			"no plugin has run here since the machine started: %s has no GPU", c.StateDir)
	case err != nil:
		area.Warn("plugin", "run this as root", "%v", err)
	default:
		area.OK("plugin", "it has published %d devices", len(written))
	}
}

func (e Entry) diagnose(area *doctor.Area) {
	name := fmt.Sprintf("GPU %d", e.Index)
	if e.Parent != "" {
		name = fmt.Sprintf("%s %d", e.Profile, e.Index)
	}
	what := fmt.Sprintf("%s (%s), %s", e.Model, e.UUID, e.Mode)
	for _, f := range e.Faults {
		area.Fail(name, f.Action, "%s: %s: %s", what, f.Code, f.Message)
	}
	if e.Cordon != "" {
		area.Warn(name, config.PluginName+" uncordon "+e.UUID+" puts it back, when its reason is gone", "%s is cordoned: %s", what, e.Cordon)
	}
	if len(e.Faults) == 0 && e.Cordon == "" {
		area.OK(name, "%s", what)
	}
}

// leastMPSBranch is the first branch of NVIDIA's driver whose MPS has memory limits
// that hold for a task.
const leastMPSBranch = 535

func diagnoseMPS(c *config.Config, area *doctor.Area, i Inventory) {
	wanted := false
	for _, d := range i.Devices {
		wanted = wanted || d.Sharing == gpu.SharingMPS
	}
	if !wanted {
		return
	}
	const check = "MPS"
	program, err := exec.LookPath(c.MPS.Control)
	if err != nil {
		area.Fail(check, "install it (Debian: nvidia-cuda-mps), name it in mps { control }, or choose sharing = \"timeslice\"", "slices need NVIDIA's control program: %v", err)
		return
	}
	major, _, _ := strings.Cut(i.DriverVersion, ".")
	if branch, err := strconv.Atoi(major); err == nil && branch < leastMPSBranch {
		area.Fail(check, fmt.Sprintf("install a driver of branch %d or newer, or choose sharing = \"timeslice\"", leastMPSBranch), "branch %d has no memory limits for MPS", branch)
		return
	}
	protocol, err := mpsctl.Detect(context.Background(), program, mpsctl.Control{Timeout: 10 * time.Second})
	switch {
	case err != nil:
		area.Warn(check, "run it by hand with -h", "%s does not say which protocols it has: %v", program, err)
	case protocol && c.MPS.Protocol != "2":
		area.OK(check, "%s has protocol 3: each task on a GPU gets an MPS namespace", program)
	case protocol:
		area.OK(check, "%s has protocol 3, and mps { protocol = \"2\" } is configured", program)
	default:
		area.OK(check, "%s has protocol 2 only; 3 came with branch 615", program)
	}
}

const metricsTimeout = 10 * time.Second

func diagnoseMetrics(ctx context.Context, c *config.Config, area *doctor.Area) {
	if c.Metrics == "" {
		return
	}
	const check = "metrics"
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	text, err := fetch(ctx, "http://"+c.Metrics+"/metrics")
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		area.Warn(check, "is Nomad running, with the plugin in plugin_dir?", "nothing listens at %s", c.Metrics)
	case err != nil:
		area.Warn(check, "look at what listens there: ss -ltnp", "%s does not answer: %v", c.Metrics, err)
	case !strings.Contains(text, "nomad_gpu_"):
		area.Fail(check, "choose another metrics { address }: ss -ltnp shows who has this one", "another program listens at %s", c.Metrics)
	default:
		area.OK(check, "http://%s/metrics answers", c.Metrics)
	}
}

const maxMetrics = 16 << 20

func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxMetrics))
	return string(text), err
}
