// SPDX-License-Identifier: MPL-2.0

package config

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/documents"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// configOf reads a configuration as validate and Nomad do.
func configOf(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := t.TempDir() + "/test.hcl"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Read(path)
}

func TestConfigDefaults(t *testing.T) {
	c, err := configOf(t, "")
	if err != nil {
		t.Fatal(err)
	}
	want := Sharing{Mode: gpu.ModeWhole, Mechanism: gpu.SharingNone, SliceMiB: 1024, HeadroomMiB: 512, Replicas: 4, Timeslice: "default", BurstMilli: 1000}
	if c.Fallback != want || !c.Enabled || c.StateDir != "/run/nomad-gpu" || c.MPS.Control != "nvidia-cuda-mps-control" || !c.MPS.MultiUser {
		t.Errorf("defaults are %+v", c)
	}
}

func TestRulesInheritAndOverride(t *testing.T) {
	c, err := configOf(t, `
		slice_memory = "2GiB"
		gpu {
			uuid = "GPU-1"
			mode = "slice"
		}
		gpu {
			model         = "T4"
			mode          = "shared"
			replicas      = 8
			sharing       = "none"
			compute_burst = 0.5
		}
		gpu {
			index    = 3
			mode     = "mig"
			profiles = ["1g.10gb", "1g.10gb+me"]
			mig {
				profile      = "1g.*"
				mode         = "slice"
				slice_memory = "512MiB"
			}
		}`)
	if err != nil {
		t.Fatal(err)
	}
	if o := c.Rules[0].Sharing; o.Mode != gpu.ModeSlice || o.Mechanism != gpu.SharingMPS || o.SliceMiB != 2048 {
		t.Errorf("rule 0 is %+v", o)
	}
	if o := c.Rules[1].Sharing; o.Mode != gpu.ModeShared || o.Mechanism != gpu.SharingNone || o.Replicas != 8 || o.BurstMilli != 500 {
		t.Errorf("rule 1 is %+v", o)
	}
	if o := c.Rules[2].SharingOfInstance("1g.10gb"); o.Mode != gpu.ModeSlice || o.Mechanism != gpu.SharingMPS || o.SliceMiB != 512 {
		t.Errorf("instances of rule 2 are %+v", o)
	}
	if o := c.Rules[2].SharingOfInstance("3g.40gb"); o.Mode != gpu.ModeWhole {
		t.Errorf("other instances of rule 2 are %+v", o)
	}
}

func TestConfigMistakes(t *testing.T) {
	for _, tc := range []struct{ text, says string }{
		{`fingerprint_period = "soon"`, `fingerprint_period "soon" is not a duration`},
		{`fingerprint_period = "1ms"`, `of at least 1s`},
		{`mode = "half"`, `mode "half" is not one of whole, slice, shared, mig`},
		{`sharing = "luck"`, `sharing "luck" is not one of mps, timeslice, hami, dmem, suspend, none`},
		{`sharing = "mps"`, `sharing "mps" does not go with mode "whole"`},
		{`slice_memory = "1GB"`, `slice_memory: memory "1GB": unit "GB" is decimal`},
		{`headroom = "0M"`, `headroom: memory "0M"`},
		{`replicas = 0`, `replicas 0 is not a number from 1 to 1000`},
		{`compute_burst = 1001`, `compute_burst: "1001" is not valid`},
		{`replicas = 2.5`, `replicas: "2.5" is not valid (a whole number)`},
		{`replicas = "four"`, `replicas: "four" is not valid (a whole number)`},
		{`compute_burst = "50%"`, `compute_burst: "50%" is not valid (a fraction of a GPU from 0.001 to 1 such as 0.5, or thousandths such as 500); write 0.5`},
		{`gpu { index = "first" }`, `gpu[0].index: "first" is not valid (a whole number)`},
		{`mps { max_clients = 1.5 }`, `mps.max_clients: "1.5" is not valid (a whole number)`},
		{"suspend {\n host_memory = \"1GiB\"\n max_priority = 0.5\n}", `suspend.max_priority: "0.5" is not valid (a whole number)`},
		{`health { fatal_xids = [1.5] }`, `health.fatal_xids[0]: "1.5" is not valid (a whole number)`},
		{`timeslice = "forever"`, `timeslice "forever" is not one of default, short, medium, long`},
		{`mig_names = "mine"`, `mig_names "mine" is not one of profile, hashicorp`},
		{`state_dir = "run"`, `state_dir "run" is not an absolute path`},
		{`state_dir = "/` + strings.Repeat("x", 99) + `"`, `is too long for the sockets of MPS; take one that is `},
		{`color = "red"`, `An argument named "color" is not expected here`},
		{`gpu { color = "red" }`, `An argument named "color" is not expected here`},
		{`gpu { uuid = "0" }`, `gpu[0].uuid "0" is not a GPU's UUID`},
		{`gpu { index = -1 }`, `gpu[0].index -1 is negative`},
		{`gpu { pci = "3b:00.0" }`, `gpu[0].pci "3b:00.0" is not a PCI address`},
		{`gpu { model = "[" }`, `gpu[0].model "[" is not a pattern`},
		{"gpu {\n mode = \"slice\"\n profiles = [\"1g.10gb\"]\n}", `gpu[0].profiles is for modes "mig" and "partition"`},
		{"gpu {\n mode = \"mig\"\n profiles = [\"big\"]\n}", `gpu[0].profiles[0] "big" is not a MIG profile`},
		{"gpu {\n mode = \"mig\"\n mig { mode = \"mig\" }\n}", `gpu[0].mig[0].mode "mig" is for GPUs`},
		{"gpu {\n mode = \"slice\"\n mig {}\n}", `gpu[0].mig is for modes "mig" and "partition"`},
		{"gpu {\n mode = \"slice\"\n layout = \"demand\"\n}", `gpu[0].layout "demand" is for mode "mig", the mode is "slice"`},
		{"gpu {\n mode = \"mig\"\n layout = \"free\"\n}", `gpu[0].layout "free" is not one of declared, demand`},
		{"gpu {\n mode = \"mig\"\n demand {}\n}", `gpu[0].demand is for layout = "demand", the layout is "declared"`},
		{"gpu {\n mode = \"mig\"\n layout = \"demand\"\n profiles = [\"1g.10gb\"]\n demand {\n least = [\"3g.40gb\"]\n}\n}", `gpu[0].demand.least[0] "3g.40gb" is not one of profiles`},
		{"gpu {\n mode = \"mig\"\n layout = \"demand\"\n demand {\n at_once = 0\n}\n}", `gpu[0].demand.at_once 0 is not a number from 1 to 64`},
		{"gpu {\n mode = \"slice\"\n sharing = \"hami\"\n}", `needs the block hami`},
		{`hami { library = "libvgpu.so" }`, `hami.library "libvgpu.so" is not an absolute path`},
		{`hami {}`, `The argument "library" is required`},
		{"mode = \"shared\"\nsharing = \"suspend\"", `sharing "suspend" needs the block suspend { host_memory`},
		{"gpu {\n mode = \"slice\"\n sharing = \"suspend\"\n}", `gpu[0].sharing "suspend" is for mode "shared", the mode is "slice"`},
		{"gpu {\n mode = \"mig\"\n mig {\n mode = \"shared\"\n sharing = \"suspend\"\n }\n}", `gpu[0].mig[0].sharing "suspend": CUDA cannot suspend programs on MIG instances`},
		{`suspend {}`, `The argument "host_memory" is required`},
		{`suspend { host_memory = "much" }`, `suspend.host_memory: memory "much"`},
		{"suspend {\n host_memory = \"1GiB\"\n idle = \"soon\"\n}", `suspend.idle "soon" is not a duration`},
		{"suspend {\n host_memory = \"1GiB\"\n max_switching = 0\n}", `suspend.max_switching 0 is not a number from 1 to 50`},
		{"suspend {\n host_memory = \"1GiB\"\n unsuspendable = \"kill\"\n}", `suspend.unsuspendable "kill" is not one of keep, refuse`},
		{"suspend {\n host_memory = \"1GiB\"\n max_priority = 101\n}", `suspend.max_priority 101 is not a number from 1 to 100`},
		{`mps { max_clients = -1 }`, `mps.max_clients -1 is not valid (from 1 to 60`},
		{`mps { max_clients = 61 }`, `mps.max_clients 61 is not valid (from 1 to 60`},
		{`mps { max_clients = 4096 }`, `mps.max_clients 4096 is not valid`},
		{`mps { shm_size = "0" }`, `mps.shm_size "0" is not a size of at least 1 MiB`},
		{`mps { shm_size = "plenty" }`, `mps.shm_size "plenty" is not a size`},
		{`mps { protocol = "4" }`, `mps.protocol "4" is not valid ("auto", "2" or "3")`},
		{"mps {\n protocol = \"3\"\n static_partitioning = true\n}", `mps.protocol "3" is not valid with static_partitioning`},
		{`mps { control = "" }`, `mps.control is empty`},
		{`health { interval = "0s" }`, `health.interval "0s"`},
		{"health {\n application_xids = [48]\n fatal_xids = [48]\n}", `XID 48 is both in application_xids and in fatal_xids`},
		{"health {\n application_xids = [1, 5]\n fatal_xids = [5]\n}", `XID 5 is both in application_xids and in fatal_xids`},
		{"health {\n application_xids = [5]\n fatal_xids = [2, 5]\n}", `XID 5 is both in application_xids and in fatal_xids`},
		{`metrics { address = "9836" }`, `metrics.address "9836" is not host:port`},
		{"simulation {\n topology = \"x.hcl\"\n dir = \"/tmp\"\n}", `simulation.topology "x.hcl" is not an absolute path`},
	} {
		_, err := configOf(t, tc.text)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s\n got %v\nwant %s", tc.text, err, tc.says)
		}
	}
}

func TestEveryMistakeIsNamedAtOnce(t *testing.T) {
	_, err := configOf(t, "replicas = 0\ntimeslice = \"forever\"\nmps { max_clients = 0.5 }")
	if err == nil || strings.Count(err.Error(), "\n") != 3 { // the file, and a line for each
		t.Errorf("got %v", err)
	}
}

func TestRuleSelection(t *testing.T) {
	c, err := configOf(t, `
		gpu {
			pci  = "00000000:3B:00.0"
			mode = "shared"
		}
		gpu {
			model = "*A100*"
			index = 1
			mode  = "slice"
		}
		gpu {
			model = "A100"
			mode  = "shared"
		}`)
	if err != nil {
		t.Fatal(err)
	}
	g := hardware.GPU{UUID: "GPU-1", Vendor: "nvidia"}
	for _, tc := range []struct {
		pci, model string
		index      int
		want       gpu.Mode
	}{
		{"0000:3b:00.0", "Tesla T4", 0, gpu.ModeShared},
		{"0000:3c:00.0", "NVIDIA A100-SXM4-40GB", 1, gpu.ModeSlice},
		{"0000:3c:00.0", "NVIDIA A100-SXM4-40GB", 2, gpu.ModeShared},
		{"0000:3c:00.0", "Tesla T4", 1, gpu.ModeWhole},
	} {
		g.PCIBusID, g.Model = tc.pci, tc.model
		if got := c.RuleFor(g, tc.index).Sharing.Mode; got != tc.want {
			t.Errorf("%+v: got mode %s", tc, got)
		}
	}
}

func TestPluginBlocksInDocumentsAreValid(t *testing.T) {
	for _, block := range documents.HCL(t, "../..", "plugin", "plugin_dir", "data_dir", "config", "gpu", "simulation") {
		text, parts := block.Text, []string{"docs/device.md", "docs/amd.md", "docs/ascend.md", "docs/intel.md"}
		switch word := documents.FirstWord(block); {
		case word == "config" && slices.Contains(parts, block.Path):
			text = "plugin \"" + PluginName + "\" {\n" + text + "}\n"
		case (word == "gpu" || word == "simulation") && slices.Contains(parts, block.Path):
			text = "plugin \"" + PluginName + "\" {\nconfig {\n" + text + "}\n}\n"
		case !strings.Contains(text, `plugin "`+PluginName+`"`): // of the driver, or of a task
			continue
		}
		path := t.TempDir() + "/agent.hcl"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err != nil {
			t.Errorf("%s:%d: %v", block.Path, block.Line, err)
		}
	}
}
