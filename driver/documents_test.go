// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

func TestPluginBlocksInDocumentsAreValid(t *testing.T) {
	for _, block := range documents.HCL(t, "..", "plugin", "plugin_dir", "data_dir") {
		if !strings.Contains(block.Text, `plugin "`+config.PluginName+`"`) {
			continue
		}
		path := filepath.Join(t.TempDir(), "agent.hcl")
		if err := os.WriteFile(path, []byte(block.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Validate(path); err != nil {
			t.Errorf("%s:%d: %v", block.Path, block.Line, err)
		}
	}
}

// The config blocks of containerd tasks in documents have options that there are.
func TestTasksInDocumentsAreValid(t *testing.T) {
	spec, diags := hclspecutils.Convert(config.TaskSchema)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	found := 0
	for _, block := range append(documents.HCL(t, "..", "job", "group", "task"), partsOfTasks(t)...) {
		file, diags := hclsyntax.ParseConfig([]byte(block.Text), block.Path, hcl.InitialPos)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		for _, config := range containerdConfigs(file.Body.(*hclsyntax.Body)) {
			if len(config.Attributes)+len(config.Blocks) == 0 {
				continue // a fragment that leaves it out
			}
			found++
			if _, diags, errs := hclutils.ParseHclInterface(asNomadReads(t, config), spec, nil); diags.HasErrors() {
				t.Errorf("%s:%d: %v", block.Path, block.Line, errs)
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d tasks were found", found)
	}
}

// partsOfTasks are what documents show of a containerd task's configuration alone, in a
// task.
func partsOfTasks(t *testing.T) []documents.Block {
	t.Helper()
	var blocks []documents.Block
	for _, block := range documents.HCL(t, "..", "config", "gpu", "mounts") {
		if block.Path != "docs/driver.md" && block.Path != "docs/suspend.md" { // of the device plugin, or of Docker's driver
			continue
		}
		if documents.FirstWord(block) != "config" {
			block.Text = "config {\nimage = \"x\"\n" + block.Text + "}\n"
		}
		block.Text = "task \"x\" {\ndriver = \"" + Name + "\"\n" + block.Text + "}\n"
		blocks = append(blocks, block)
	}
	return blocks
}

// containerdConfigs are the config blocks of a job's containerd tasks.
func containerdConfigs(body *hclsyntax.Body) []*hclsyntax.Body {
	var configs []*hclsyntax.Body
	for _, block := range body.Blocks {
		if block.Type != "task" {
			configs = append(configs, containerdConfigs(block.Body)...)
			continue
		}
		driver := block.Body.Attributes["driver"]
		if driver == nil {
			continue
		}
		if name, _ := driver.Expr.Value(nil); name.AsString() != Name {
			continue
		}
		for _, inner := range block.Body.Blocks {
			if inner.Type == "config" {
				configs = append(configs, inner.Body)
			}
		}
	}
	return configs
}

// asNomadReads turns a block into the map in which Nomad hands it to a driver:
// attributes by name, and lists of what inner blocks hold.
func asNomadReads(t *testing.T, body *hclsyntax.Body) map[string]any {
	t.Helper()
	values := map[string]any{}
	for name, attribute := range body.Attributes {
		value, diags := attribute.Expr.Value(&hcl.EvalContext{Variables: nomadVariables(attribute.Expr)})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		text, err := ctyjson.Marshal(value, value.Type())
		if err != nil {
			t.Fatal(err)
		}
		var plain any
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatal(err)
		}
		values[name] = plain
	}
	for _, block := range body.Blocks {
		list, _ := values[block.Type].([]any)
		values[block.Type] = append(list, asNomadReads(t, block.Body))
	}
	return values
}

// nomadVariables stands for what Nomad would put in for ${NAME}.
func nomadVariables(e hclsyntax.Expression) map[string]cty.Value {
	values := map[string]cty.Value{}
	for _, variable := range e.Variables() {
		values[variable.RootName()] = cty.StringVal("value")
	}
	return values
}
