// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// TaskSchema is the config block of a task, as Nomad wants it described.
var TaskSchema = schemaOf(taskconfig.Schema())

func schemaOf(fields []hclform.Field) *hclspec.Spec {
	object := map[string]*hclspec.Spec{}
	for _, f := range fields {
		switch {
		case f.Open:
			object[f.Name] = hclspec.NewBlockAttrs(f.Name, f.Type, f.Required)
		case f.Repeated:
			object[f.Name] = hclspec.NewBlockList(f.Name, schemaOf(f.Block))
		case f.Block != nil:
			object[f.Name] = hclspec.NewBlock(f.Name, f.Required, schemaOf(f.Block))
		default:
			object[f.Name] = hclspec.NewAttr(f.Name, f.Type, f.Required)
			if f.Default != "" {
				object[f.Name] = hclspec.NewDefault(object[f.Name], hclspec.NewLiteral(f.Default))
			}
		}
	}
	return hclspec.NewObject(object)
}

// Task reads the config block of a task and checks all that can be checked
// without looking at the node. Its error names every mistake.
func Task(cfg *drivers.TaskConfig, policy taskconfig.Policy) (taskconfig.Config, error) {
	var written map[string]any
	if err := cfg.DecodeDriverConfig(&written); err != nil {
		return taskconfig.Config{}, fmt.Errorf("decode task config: %w", err)
	}
	group := cfg.NetworkIsolation != nil && cfg.NetworkIsolation.Path != ""
	return taskconfig.CheckTask(cfg.Name, written, group, policy)
}

// OnFault is what the author of a task chose to happen when it cannot go on on its GPU.
func OnFault(cfg *drivers.TaskConfig) string {
	var written map[string]any
	if cfg.DecodeDriverConfig(&written) != nil {
		return taskconfig.OnFaultRestart // it was decoded when the task was started
	}
	config, err := taskconfig.Decode(written)
	if err != nil {
		return taskconfig.OnFaultRestart
	}
	return config.GPU.OnFault
}
