// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"maps"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Env merges the environment of a container, in rising precedence: the image's
// ("KEY=value"), the task's with its templates, the devices', and what the
// driver computed. Guarded variables are taken from computed alone. The result
// is sorted.
func Env(image []string, task, device, computed map[string]string) []string {
	env := map[string]string{}
	for _, entry := range image {
		key, value, _ := strings.Cut(entry, "=")
		env[key] = value
	}
	maps.Copy(env, task)
	for key, value := range device {
		// A device plugin names a library of the host there, for drivers that cannot
		// show it to a task in another way; a container finds it by PreloadPath, and
		// keeps its own.
		if key != "LD_PRELOAD" {
			env[key] = value
		}
	}
	maps.DeleteFunc(env, func(key, _ string) bool { return gpu.GuardedEnv(key) || !validKey(key) })
	// A container engine with NVIDIA's own hook hands out GPUs by this variable,
	// or, when an old CUDA image lacks it, all of them. CDI has done that already.
	env[gpu.EnvNVIDIAVisible] = voidVisibility
	maps.Copy(env, computed)
	list := make([]string, 0, len(env))
	for key, value := range env {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	return list
}

// Dropped are the variables that a task set, or a template of its, and that Env
// leaves to the driver, sorted. Nomad's own are in the task's environment too.
func Dropped(task, device map[string]string) []string {
	var keys []string
	for key, value := range task {
		if gpu.GuardedEnv(key) && device[key] != value {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// validKey refuses names that would become another variable's: the name
// "CUDA_VISIBLE_DEVICES=0" is none of ours, but it sets one that is.
func validKey(key string) bool { return key != "" && !strings.ContainsAny(key, "=\x00") }

// KeepGuarded returns after, the environment that CDI edits left, with the
// guarded variables of before: a vendor's spec may add variables, but not undo
// what the driver computed. NVIDIA's specs set NVIDIA_VISIBLE_DEVICES themselves.
func KeepGuarded(before, after []string) []string {
	own := map[string]bool{}
	for _, entry := range before {
		key, _, _ := strings.Cut(entry, "=")
		own[key] = true
	}
	kept := slices.Clone(before)
	for _, entry := range after {
		if key, _, _ := strings.Cut(entry, "="); !own[key] {
			kept = append(kept, entry)
		}
	}
	return kept
}
