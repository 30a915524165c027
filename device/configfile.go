package device

import (
	"fmt"
	"os"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// readConfig reads a configuration from a file, without Nomad: the agent's
// configuration with this plugin's block in it, or the inside of that block. An
// empty path is the default configuration. It takes the way that Nomad takes,
// schema and all, so that what is accepted here is accepted there.
func readConfig(path string) (*config, error) {
	body := hcl.EmptyBody()
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		file, diags := hclparse.NewParser().ParseHCL(text, path)
		if diags.HasErrors() {
			return nil, fmt.Errorf("read configuration: %w", diags)
		}
		if body, err = pluginBlock(file.Body); err != nil {
			return nil, fmt.Errorf("read configuration %s: %w", path, err)
		}
	}
	raw, err := decodeConfig(body)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := parseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s:\n%w", path, err)
	}
	return c, nil
}

// pluginBlock finds the inside of plugin "nomad-device-gpu" { config { … } }. A
// file without any plugin block is taken for that inside.
func pluginBlock(body hcl.Body) (hcl.Body, error) {
	content, _, diags := body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "plugin", LabelNames: []string{"name"}}}})
	if diags.HasErrors() {
		return nil, diags
	}
	if len(content.Blocks) == 0 {
		return body, nil
	}
	for _, block := range content.Blocks {
		if block.Labels[0] != Name {
			continue
		}
		inside, _, diags := block.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "config"}}})
		if diags.HasErrors() {
			return nil, diags
		}
		if len(inside.Blocks) == 0 {
			return hcl.EmptyBody(), nil
		}
		return inside.Blocks[0].Body, nil
	}
	return nil, fmt.Errorf("there is no block plugin %q, without which Nomad does not load the plugin", Name)
}

func decodeConfig(body hcl.Body) (rawConfig, error) {
	var raw rawConfig
	spec, diags := hclspecutils.Convert(configSchema)
	if diags.HasErrors() {
		return raw, diags
	}
	value, diags := hcldec.Decode(body, spec, &hcl.EvalContext{Functions: hclutils.GetStdlibFuncs()})
	if diags.HasErrors() {
		return raw, diags
	}
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return raw, fmt.Errorf("encode configuration: %w", err)
	}
	return raw, base.MsgPackDecode(packed, &raw)
}
