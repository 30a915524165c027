// Package agentconfig reads a plugin's configuration without Nomad, on the way
// that Nomad takes, schema and all, so that a configuration accepted here is accepted
// there.
package agentconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// Plugin is the plugin whose configuration is read.
type Plugin struct {
	Name   string
	Schema *hclspec.Spec
	// Replaces are plugins that this one takes the place of; their blocks are not
	// read, and the error says so.
	Replaces []string
}

// Read reads the plugin's configuration into a pointer to what Nomad decodes it
// into. The path is a configuration of the agent in HCL or JSON, a folder of
// them as in -config, or a file with the inside of the plugin's config block
// alone; empty stands for a block without anything in it.
func (p Plugin) Read(path string, into any) error {
	body, err := p.find(path)
	if err == nil {
		err = p.decode(body, into)
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return nil
}

// JSON is the configuration at a path as Nomad understands it, with its defaults.
func (p Plugin) JSON(path string) ([]byte, error) {
	body, err := p.find(path)
	var value cty.Value
	if err == nil {
		value, err = p.value(body)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return ctyjson.Marshal(value, value.Type())
}

// Encode turns the inside of a config block into what Nomad hands to a plugin with a
// schema.
func Encode(schema *hclspec.Spec, text string) ([]byte, error) {
	file, diags := hclparse.NewParser().ParseHCL([]byte(text), "config.hcl")
	if diags.HasErrors() {
		return nil, diags
	}
	return Plugin{Schema: schema}.encode(file.Body)
}

func (p Plugin) find(path string) (hcl.Body, error) {
	if path == "" {
		return hcl.EmptyBody(), nil
	}
	files, folder, err := filesAt(path)
	if err != nil {
		return nil, err
	}
	var bodies, blocks []hcl.Body
	var others []string
	for _, name := range files {
		body, err := parse(name)
		if err != nil {
			return nil, err
		}
		mine, named, err := p.blocks(body)
		if err != nil {
			return nil, err
		}
		bodies, blocks, others = append(bodies, body), append(blocks, mine...), append(others, named...)
	}
	switch {
	case len(blocks) > 0:
		return hcl.MergeBodies(blocks), nil
	case len(others) == 0 && !folder:
		return bodies[0], nil
	}
	return nil, p.absent(path, others)
}

// filesAt lists what Nomad reads of a path, in its order: the file itself, or those of a
// folder.
func filesAt(path string) (files []string, folder bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		return []string{path}, false, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, true, err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".hcl" || ext == ".json") {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, true, fmt.Errorf("%s: no file there ends in .hcl or .json", path)
	}
	return files, true, nil
}

func parse(path string) (hcl.Body, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	read := hclparse.NewParser().ParseHCL
	if filepath.Ext(path) == ".json" {
		read = hclparse.NewParser().ParseJSON
	}
	file, diags := read(text, path)
	if diags.HasErrors() {
		return nil, diags
	}
	return file.Body, nil
}

// blocks are the insides of plugin "NAME" { config { … } }, and the names of all
// plugin blocks.
func (p Plugin) blocks(body hcl.Body) (mine []hcl.Body, named []string, err error) {
	content, _, diags := body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "plugin", LabelNames: []string{"name"}}}})
	if diags.HasErrors() {
		return nil, nil, diags
	}
	for _, block := range content.Blocks {
		named = append(named, block.Labels[0])
		if block.Labels[0] != p.Name {
			continue
		}
		inside, _, diags := block.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "config"}}})
		if diags.HasErrors() {
			return nil, nil, diags
		}
		if len(inside.Blocks) == 0 {
			mine = append(mine, hcl.EmptyBody())
		}
		for _, config := range inside.Blocks {
			mine = append(mine, config.Body)
		}
	}
	return mine, named, nil
}

func (p Plugin) absent(path string, others []string) error {
	why := fmt.Sprintf("%s: there is no block plugin %q, without which Nomad does not load the plugin", path, p.Name)
	for _, name := range p.Replaces {
		if slices.Contains(others, name) {
			return fmt.Errorf("%s; plugin %q is another one, which this one replaces: take its block out and write one for this plugin, whose keys are its own", why, name)
		}
	}
	if len(others) > 0 {
		why += "; the blocks there are for " + strings.Join(others, ", ")
	}
	return errors.New(why)
}

func (p Plugin) decode(body hcl.Body, into any) error {
	packed, err := p.encode(body)
	if err != nil {
		return err
	}
	return Decode(packed, into)
}

func (p Plugin) encode(body hcl.Body) ([]byte, error) {
	value, err := p.value(body)
	if err != nil {
		return nil, err
	}
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return packed, nil
}

func (p Plugin) value(body hcl.Body) (cty.Value, error) {
	spec, diags := hclspecutils.Convert(p.Schema)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	value, diags := hcldec.Decode(body, spec, &hcl.EvalContext{Functions: hclutils.GetStdlibFuncs()})
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return value, nil
}
