// SPDX-License-Identifier: MPL-2.0

package framework

import (
	"fmt"
	"maps"
	"strconv"
)

// Share is what a task holds of each of its GPUs.
type Share struct {
	// GPUs is how many devices the task sees.
	GPUs int
	// Whole is set when the task has its GPUs for itself.
	Whole bool
	// MemoryMiB is the task's memory on each GPU; 0 when none is promised,
	// and then the device's own size counts.
	MemoryMiB int64
	// Vendor is the GPU's: "amd"; empty is NVIDIA.
	Vendor string
	// Type is the GPU's short name, "A100"; empty when any will do.
	Type string
	// Precision is the choice of an earlier setup for the type; empty: choose now.
	Precision string
}

// WrittenShare is the share that an earlier setup was made for, out of the
// environment that it wrote; zero where there was none.
func WrittenShare(env map[string]string) Share {
	if env[EnvFramework] == "" {
		return Share{}
	}
	s := Share{GPUs: 1, Whole: true, Precision: env[EnvPrecision], Vendor: env[EnvVendor]}
	if memory, err := strconv.ParseInt(env[EnvShare], 10, 64); err == nil && memory > 0 {
		s.Whole, s.MemoryMiB = false, memory
	}
	if gpus, err := strconv.Atoi(env[envPerNode]); err == nil && gpus > 0 {
		s.GPUs = gpus
	}
	return s
}

// Group is where the task stands: its job, its task group and that group's
// network.
type Group struct {
	Job, Group, Task string
	// Count is the group's count: the number of ranks, or of machines that hold
	// several ranks each.
	Count int
	// Least and Most bound the allocations of a training that goes on with fewer
	// or more; both 0 where the number is fixed.
	Least, Most int
	// Network is the mode of the group's network; empty when it has none.
	Network string
}

// Setup is what a task needs beside its devices. Template, Service and Port
// carry the field names of Nomad's job API.
type Setup struct {
	Env       map[string]string `json:"Env"`
	Templates []Template        `json:"Templates,omitempty"` // of the task
	Service   *Service          `json:"Service,omitempty"`   // of the group
	Port      *Port             `json:"Port,omitempty"`      // of the group's network
	// HostNetwork is set when the task itself must be on the host's network, and
	// not in one of its own beside it.
	HostNetwork bool `json:"-"`
	// Notes are what the author should know, one sentence each.
	Notes []string `json:"-"`
}

// Template is a template block of a task.
type Template struct {
	EmbeddedTmpl string
	DestPath     string
	ChangeMode   string
	Envvars      bool
	Perms        string
	Wait         *Wait `json:",omitempty"`
}

// Wait is how long what a template reads must be unchanged before it is
// rendered, and how long that may take.
type Wait struct {
	Min, Max int64 // nanoseconds
}

// Service is a service block of a group.
type Service struct {
	Name      string
	PortLabel string
	Provider  string
	Tags      []string
}

// Port is a dynamic port of a group's network.
type Port struct {
	Label string
}

// Variables that the helper file reads; a program may read them too.
const (
	EnvFraction  = "GPU_MEMORY_FRACTION"  // of the share: "0.8"
	EnvShare     = "GPU_MEMORY_SHARE_MIB" // per GPU; absent for a whole GPU
	EnvMode      = "GPU_MEMORY_MODE"      // conservative, aggressive, dynamic
	EnvPrecision = "GPU_MIXED_PRECISION"  // "bf16" or "fp16"; absent without
	EnvFramework = "GPU_FRAMEWORK"        // pytorch, tensorflow
	EnvVendor    = "GPU_VENDOR"           // amd, intel, huawei; absent for NVIDIA
	EnvRanks     = "GPU_RANKS"            // allocations of a distributed training: "4", or "2:4"
)

// envPerNode is how many processes torchrun starts: one per GPU.
const envPerNode = "PET_NPROC_PER_NODE"

// Plan works out the setup. It is deterministic: the same arguments give the
// same setup, so an unchanged job submitted again stays unchanged.
func Plan(o Options, s Share, g Group) (Setup, error) {
	if err := o.Validate(); err != nil {
		return Setup{}, err
	}
	if s.GPUs < 1 {
		return Setup{}, fmt.Errorf("framework %s needs at least one GPU, the task has %d", o.Kind, s.GPUs)
	}
	setup := Setup{Env: map[string]string{
		EnvFramework: string(o.Kind),
		EnvMode:      string(o.Memory),
		EnvFraction:  milliText(o.fraction()),
	}}
	if !s.Whole && s.MemoryMiB > 0 {
		setup.Env[EnvShare] = strconv.FormatInt(s.MemoryMiB, 10)
	}
	if s.Vendor != "" && s.Vendor != nvidia {
		setup.Env[EnvVendor] = s.Vendor
	}
	switch o.Kind {
	case PyTorch:
		pytorch(&setup, o, s)
	case TensorFlow:
		tensorflow(&setup, o, s)
	}
	if !o.NoHelper {
		addHelper(&setup)
	}
	if o.Distributed {
		return setup, addRendezvous(&setup, o, s, g)
	}
	return setup, nil
}

// Merge returns a task's environment with the setup's beside it. What the
// author wrote stands; PYTHONPATH is extended, since both must be found, and the
// number of allocations is fixed.
func (s Setup) Merge(env map[string]string) map[string]string {
	merged := maps.Clone(s.Env)
	for key, value := range env {
		ours, ok := s.Env[key]
		switch {
		case ok && key == EnvRanks:
			value = ours
		case ok && key == pythonPath && value != ours:
			value += ":" + ours
		}
		merged[key] = value
	}
	return merged
}

// milliText writes milli as a decimal: 800 is "0.8", 1000 is "1".
func milliText(milli int64) string {
	return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64)
}
