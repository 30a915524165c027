// SPDX-License-Identifier: MPL-2.0

package framework

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Kind is a framework.
type Kind string

const (
	PyTorch    Kind = "pytorch"
	TensorFlow Kind = "tensorflow"
)

// Memory is how much of its share a framework takes.
type Memory string

const (
	// Conservative takes at most 0.8 of the share: room for CUDA contexts,
	// libraries and a second process.
	Conservative Memory = "conservative"
	// Aggressive takes at most 0.95 of the share.
	Aggressive Memory = "aggressive"
	// Dynamic takes memory when it is needed, up to the whole share, and
	// gives back unused memory.
	Dynamic Memory = "dynamic"
)

// fractions are the part of the share that each memory setting allows.
var fractions = map[Memory]int64{Conservative: 800, Aggressive: 950, Dynamic: gpu.MilliPerGPU}

// Meta keys that ParseMeta reads, on a task.
const (
	MetaFramework   = "gpu_framework"
	MetaMemory      = "gpu_memory_mode"
	MetaFraction    = "gpu_memory_fraction"
	MetaPrecision   = "gpu_mixed_precision"
	MetaDistributed = "gpu_distributed"
	MetaInterface   = "gpu_interface"
	MetaHelper      = "gpu_framework_helper"
)

// companions are the keys that mean something only beside MetaFramework.
var companions = []string{MetaMemory, MetaFraction, MetaPrecision, MetaDistributed, MetaInterface, MetaHelper}

// Options is what a task's author chooses.
type Options struct {
	Kind   Kind
	Memory Memory
	// FractionMilli is the part of the share that the framework may take, 1 to
	// 1000. 0: what Memory says.
	FractionMilli int64
	// MixedPrecision asks for 16-bit arithmetic where the framework decides so.
	MixedPrecision bool
	// Distributed makes the task group's allocations the ranks of one training.
	Distributed bool
	// Interface is the network interface between the ranks; empty: found by NCCL.
	Interface string
	// NoHelper leaves the Python file out, for images with a sitecustomize that
	// must stay the only one.
	NoHelper bool
}

var interfaceName = regexp.MustCompile(`^\^?[A-Za-z0-9_.=-]{1,15}(,[A-Za-z0-9_.=-]{1,15})*$`)

// ParseMeta reads the options out of a task's meta. The second result is false
// when the task names no framework. Other keys are not touched.
func ParseMeta(meta map[string]string) (Options, bool, error) {
	if _, ok := meta[MetaFramework]; !ok {
		return Options{}, false, orphan(meta)
	}
	o := Options{Memory: Conservative, Interface: meta[MetaInterface]}
	helper := true
	for _, step := range []error{
		parseWord(meta, MetaFramework, &o.Kind, PyTorch, TensorFlow),
		parseWord(meta, MetaMemory, &o.Memory, Conservative, Aggressive, Dynamic),
		parseFraction(meta, &o.FractionMilli),
		parseBool(meta, MetaPrecision, &o.MixedPrecision),
		parseBool(meta, MetaDistributed, &o.Distributed),
		parseBool(meta, MetaHelper, &helper),
	} {
		if step != nil {
			return Options{}, false, step
		}
	}
	o.NoHelper = !helper
	return o, true, o.Validate()
}

// Validate reports options that are out of range or contradict each other.
func (o Options) Validate() error {
	_, known := fractions[o.Memory]
	switch {
	case o.Kind != PyTorch && o.Kind != TensorFlow:
		return fmt.Errorf("framework %q is not one of %s, %s", o.Kind, PyTorch, TensorFlow)
	case !known:
		return fmt.Errorf("memory mode %q is not one of %s, %s, %s", o.Memory, Conservative, Aggressive, Dynamic)
	case o.FractionMilli < 0 || o.FractionMilli > gpu.MilliPerGPU:
		return fmt.Errorf("memory fraction %d is not from 1 to %d (thousandths of a GPU)", o.FractionMilli, gpu.MilliPerGPU)
	case o.FractionMilli != 0 && o.Memory == Dynamic:
		return fmt.Errorf("a memory fraction and memory mode %q contradict each other; leave one out", Dynamic)
	case o.Interface != "" && !interfaceName.MatchString(o.Interface):
		return fmt.Errorf("interface %q is not a list of interface names such as \"eth0\" or \"^lo,docker\"", o.Interface)
	}
	return nil
}

// fraction is the part of the share that the framework may take.
func (o Options) fraction() int64 {
	if o.FractionMilli != 0 {
		return o.FractionMilli
	}
	return fractions[o.Memory]
}

func orphan(meta map[string]string) error {
	for _, key := range companions {
		if _, ok := meta[key]; ok {
			return fmt.Errorf("meta %q needs meta %q beside it, one of %s, %s", key, MetaFramework, PyTorch, TensorFlow)
		}
	}
	return nil
}

func parseWord[T ~string](meta map[string]string, key string, to *T, valid ...T) error {
	text, ok := meta[key]
	if !ok {
		return nil
	}
	names := make([]string, len(valid))
	for i, v := range valid {
		if text == string(v) {
			*to = v
			return nil
		}
		names[i] = string(v)
	}
	return fmt.Errorf("meta %s %q is not one of %s", key, text, strings.Join(names, ", "))
}

func parseBool(meta map[string]string, key string, to *bool) error {
	switch text, ok := meta[key]; {
	case !ok:
	case text == "true" || text == "false":
		*to = text == "true"
	default:
		return fmt.Errorf("meta %s %q is not one of true, false", key, text)
	}
	return nil
}

var decimal = regexp.MustCompile(`^(1|1\.0{1,3}|0\.\d{1,3})$`)

func parseFraction(meta map[string]string, to *int64) error {
	text, ok := meta[MetaFraction]
	if !ok {
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	milli := int64(value*gpu.MilliPerGPU + 0.5)
	if err != nil || !decimal.MatchString(text) || milli == 0 {
		return fmt.Errorf("meta %s %q is not a fraction from 0.001 to 1", MetaFraction, text)
	}
	*to = milli
	return nil
}
