// SPDX-License-Identifier: MPL-2.0

package agentconfig

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/nomad-gpu/nomad-gpu/internal/hcltext"
)

// Agent is what of an agent's own configuration concerns its plugins; a key that
// is not written is empty.
type Agent struct {
	DataDir, PluginDir string
	// CNIPath is client { cni_path }, PublishMetrics telemetry
	// { publish_allocation_metrics }.
	CNIPath        string
	PublishMetrics bool
	// Plugins are the labels of the plugin blocks.
	Plugins []string
}

var agentSchema = &hcl.BodySchema{
	Attributes: []hcl.AttributeSchema{{Name: "data_dir"}, {Name: "plugin_dir"}},
	Blocks:     []hcl.BlockHeaderSchema{{Type: "client"}, {Type: "telemetry"}, {Type: "plugin", LabelNames: []string{"name"}}},
}

// ReadAgent reads the configuration of an agent: a file in HCL or JSON, or a folder
// of them as in -config, where later files win, as they do in Nomad.
func ReadAgent(path string) (Agent, error) {
	var a Agent
	files, _, err := filesAt(path)
	if err != nil {
		return a, fmt.Errorf("read configuration: %w", err)
	}
	for _, file := range files {
		body, err := parse(file)
		if err == nil {
			err = a.add(body)
		}
		if err != nil {
			return a, fmt.Errorf("read configuration: %w", err)
		}
	}
	return a, nil
}

func (a *Agent) add(body hcl.Body) error {
	content, _, diags := body.PartialContent(agentSchema)
	if diags.HasErrors() {
		return hcltext.Error(diags)
	}
	if err := text(content.Attributes["data_dir"], &a.DataDir); err != nil {
		return err
	}
	if err := text(content.Attributes["plugin_dir"], &a.PluginDir); err != nil {
		return err
	}
	for _, block := range content.Blocks {
		switch block.Type {
		case "plugin":
			a.Plugins = append(a.Plugins, block.Labels[0])
		case "client":
			inside, _, diags := block.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "cni_path"}}})
			if diags.HasErrors() {
				return hcltext.Error(diags)
			}
			if err := text(inside.Attributes["cni_path"], &a.CNIPath); err != nil {
				return err
			}
		case "telemetry":
			const key = "publish_allocation_metrics"
			inside, _, diags := block.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: key}}})
			if diags.HasErrors() {
				return hcltext.Error(diags)
			}
			publish := fmt.Sprint(a.PublishMetrics)
			if err := text(inside.Attributes[key], &publish); err != nil {
				return err
			}
			a.PublishMetrics = publish == "true"
		}
	}
	return nil
}

// text enters an attribute that is there.
func text(attribute *hcl.Attribute, into *string) error {
	if attribute == nil {
		return nil
	}
	value, diags := attribute.Expr.Value(&hcl.EvalContext{Functions: hclutils.GetStdlibFuncs()})
	if diags.HasErrors() {
		return hcltext.Error(diags)
	}
	value, err := convert.Convert(value, cty.String)
	if err != nil || value.IsNull() || !value.IsKnown() {
		return fmt.Errorf("%s: %s is not text", attribute.Range, attribute.Name)
	}
	*into = value.AsString()
	return nil
}
