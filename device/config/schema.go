// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Defaults of how a device is offered, which are no word of the operator's.
const (
	defaultSliceMemory = "1GiB"
	defaultHeadroom    = "512MiB"
	defaultReplicas    = 4
)

// Schema is the plugin's block in Nomad's agent configuration. Every key
// is described in docs/device.md. Numbers are text, see hclform.Fill.
var Schema = hclspec.NewObject(map[string]*hclspec.Spec{
	"enabled":            withDefault("enabled", "bool", `true`),
	"ignored_gpu_ids":    withDefault("ignored_gpu_ids", "list(string)", `[]`),
	"fingerprint_period": withDefault("fingerprint_period", "string", `"1m"`),
	"state_dir":          withDefault("state_dir", "string", `"/run/nomad-gpu"`),
	"data_dir":           withDefault("data_dir", "string", `"/var/lib/nomad-gpu"`),
	"mig_names":          withDefault("mig_names", "string", `"profile"`),
	"mode_change_delay":  withDefault("mode_change_delay", "string", `"5m"`),
	"nvidia_smi":         withDefault("nvidia_smi", "string", `"nvidia-smi"`),
	"cdi_hook":           withDefault("cdi_hook", "string", `""`),
	"driver_root":        withDefault("driver_root", "string", `"/"`),
	"memory_limits":      withDefault("memory_limits", "bool", `true`),
	"dev_root":           withDefault("dev_root", "string", `""`),
	"library_path":       withDefault("library_path", "list(string)", `[]`),

	"vendors": withDefault("vendors", "list(string)", `[]`),

	"mode":          withDefault("mode", "string", `"whole"`),
	"sharing":       hclspec.NewAttr("sharing", "string", false),
	"slice_memory":  withDefault("slice_memory", "string", `"`+defaultSliceMemory+`"`),
	"headroom":      withDefault("headroom", "string", `"`+defaultHeadroom+`"`),
	"replicas":      withDefault("replicas", "string", fmt.Sprintf("%q", fmt.Sprint(defaultReplicas))),
	"timeslice":     withDefault("timeslice", "string", `"default"`),
	"compute_burst": withDefault("compute_burst", "string", `"1000"`),

	"gpu":        hclspec.NewBlockList("gpu", ruleSchema),
	"mps":        hclspec.NewBlock("mps", false, mpsSchema),
	"hami":       hclspec.NewBlock("hami", false, hamiSchema),
	"suspend":    hclspec.NewBlock("suspend", false, suspendSchema),
	"health":     hclspec.NewBlock("health", false, healthSchema),
	"metrics":    hclspec.NewBlock("metrics", false, metricsSchema),
	"simulation": hclspec.NewBlock("simulation", false, simulationSchema),
})

// ruleSchema is one "gpu" block: which GPUs, and how they are offered.
var ruleSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"uuid":   hclspec.NewAttr("uuid", "string", false),
	"index":  hclspec.NewAttr("index", "string", false),
	"pci":    hclspec.NewAttr("pci", "string", false),
	"model":  hclspec.NewAttr("model", "string", false),
	"vendor": hclspec.NewAttr("vendor", "string", false),

	"mode":          hclspec.NewAttr("mode", "string", false),
	"sharing":       hclspec.NewAttr("sharing", "string", false),
	"slice_memory":  hclspec.NewAttr("slice_memory", "string", false),
	"headroom":      hclspec.NewAttr("headroom", "string", false),
	"replicas":      hclspec.NewAttr("replicas", "string", false),
	"timeslice":     hclspec.NewAttr("timeslice", "string", false),
	"compute_burst": hclspec.NewAttr("compute_burst", "string", false),
	"profiles":      hclspec.NewAttr("profiles", "list(string)", false),
	"layout":        hclspec.NewAttr("layout", "string", false),
	"demand":        hclspec.NewBlock("demand", false, demandSchema),
	"mig":           hclspec.NewBlockList("mig", migSchema),
})

// demandSchema bounds how a MIG layout follows demand.
var demandSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"least":   withDefault("least", "list(string)", `[]`),
	"at_once": withDefault("at_once", "string", `"1"`),
	"per_day": withDefault("per_day", "string", `"24"`),
})

// migSchema says how MIG instances of a profile are offered.
var migSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"profile":       hclspec.NewAttr("profile", "string", false),
	"mode":          hclspec.NewAttr("mode", "string", false),
	"sharing":       hclspec.NewAttr("sharing", "string", false),
	"slice_memory":  hclspec.NewAttr("slice_memory", "string", false),
	"headroom":      hclspec.NewAttr("headroom", "string", false),
	"replicas":      hclspec.NewAttr("replicas", "string", false),
	"compute_burst": hclspec.NewAttr("compute_burst", "string", false),
})

var mpsSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"control":     withDefault("control", "string", `"nvidia-cuda-mps-control"`),
	"multi_user":  withDefault("multi_user", "bool", `true`),
	"max_clients": withDefault("max_clients", "string", `"0"`),
	"host_shm":    withDefault("host_shm", "bool", `false`),
	"shm_size":    withDefault("shm_size", "string", `"1GiB"`),
	"exclusive":   withDefault("exclusive", "bool", `false`),

	"static_partitioning": withDefault("static_partitioning", "bool", `false`),
	"protocol":            withDefault("protocol", "string", `"auto"`),
})

var hamiSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"library":  hclspec.NewAttr("library", "string", true),
	"lock_dir": withDefault("lock_dir", "string", `"/tmp/vgpulock"`),
})

var suspendSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"host_memory":   hclspec.NewAttr("host_memory", "string", true),
	"idle":          withDefault("idle", "string", `"5m"`),
	"headroom":      withDefault("headroom", "string", `"1GiB"`),
	"min_turn":      withDefault("min_turn", "string", `"30s"`),
	"max_wait":      withDefault("max_wait", "string", `"1h"`),
	"max_switching": withDefault("max_switching", "string", `"10"`),
	"max_priority":  withDefault("max_priority", "string", `"50"`),
	"unsuspendable": withDefault("unsuspendable", "string", `"keep"`),
})

var healthSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"interval":         withDefault("interval", "string", `"5s"`),
	"timeout":          withDefault("timeout", "string", `"5s"`),
	"measure":          withDefault("measure", "string", `"2s"`),
	"ignore":           withDefault("ignore", "list(string)", `[]`),
	"application_xids": hclspec.NewAttr("application_xids", "list(string)", false),
	"fatal_xids":       hclspec.NewAttr("fatal_xids", "list(string)", false),
})

var metricsSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"address": hclspec.NewAttr("address", "string", true),
	"dcgm":    withDefault("dcgm", "bool", `true`),
})

var simulationSchema = hclspec.NewObject(map[string]*hclspec.Spec{
	"topology": hclspec.NewAttr("topology", "string", true),
	"dir":      hclspec.NewAttr("dir", "string", true),
	"machine":  hclspec.NewAttr("machine", "string", false),
	"boot_id":  hclspec.NewAttr("boot_id", "string", false),
	"dcmi":     hclspec.NewAttr("dcmi", "string", false),
})

func withDefault(name, kind, value string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, kind, false), hclspec.NewLiteral(value))
}
