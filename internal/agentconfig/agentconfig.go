// SPDX-License-Identifier: MPL-2.0

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
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"

	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
	"github.com/nomad-gpu/nomad-gpu/internal/hcltext"
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
//
// The error holds Mistakes where all else was read.
func (p Plugin) Read(path string, into any) error {
	body, outside, err := p.find(path)
	if err == nil {
		err = p.decode(body, outside, into)
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return nil
}

// JSON is the configuration at a path as Nomad understands it, with its defaults.
func (p Plugin) JSON(path string) ([]byte, error) {
	body, _, err := p.find(path)
	var value cty.Value
	if err == nil {
		value, err = p.valid(body)
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
		return nil, hcltext.Error(diags)
	}
	p := Plugin{Schema: schema}
	value, err := p.valid(file.Body)
	if err != nil {
		return nil, err
	}
	return pack(value)
}

// find returns the inside of the plugin's config blocks, and the mistakes around it.
func (p Plugin) find(path string) (hcl.Body, hclform.Mistakes, error) {
	if path == "" {
		return hcl.EmptyBody(), nil, nil
	}
	files, folder, err := filesAt(path)
	if err != nil {
		return nil, nil, err
	}
	var outside hclform.Mistakes
	var bodies, blocks []hcl.Body
	var others []string
	for _, name := range files {
		body, err := parse(name)
		if err != nil {
			return nil, nil, err
		}
		mine, named, around, err := p.blocks(body)
		if err != nil {
			return nil, nil, err
		}
		outside = append(outside, around...)
		bodies, blocks, others = append(bodies, body), append(blocks, mine...), append(others, named...)
	}
	switch {
	case len(blocks) > 0:
		return hcl.MergeBodies(blocks), outside, nil
	case len(others) == 0 && !folder:
		return bodies[0], nil, nil
	}
	return nil, nil, p.absent(path, others)
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
	var file *hcl.File
	var diags hcl.Diagnostics
	if filepath.Ext(path) == ".json" {
		file, diags = hclparse.NewParser().ParseJSON(text, path)
	} else {
		file, diags = hclparse.NewParser().ParseHCL(unquote(text, path), path)
	}
	if diags.HasErrors() {
		return nil, hcltext.Error(diags)
	}
	return file.Body, nil
}

// blocks are the insides of plugin "NAME" { config { … } }, the names of all plugin
// blocks, and keys beside config, which Nomad ignores.
func (p Plugin) blocks(body hcl.Body) (mine []hcl.Body, named []string, outside hclform.Mistakes, err error) {
	content, _, diags := body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "plugin", LabelNames: []string{"name"}}}})
	if diags.HasErrors() {
		return nil, nil, nil, hcltext.Error(diags)
	}
	for _, block := range content.Blocks {
		named = append(named, block.Labels[0])
		if block.Labels[0] != p.Name {
			continue
		}
		inside, diags := block.Body.Content(&hcl.BodySchema{
			Attributes: []hcl.AttributeSchema{{Name: "args"}}, Blocks: []hcl.BlockHeaderSchema{{Type: "config"}},
		})
		for _, err := range hcltext.Mistakes(diags) {
			outside = append(outside, hclform.Mistake{Problem: err.Error() + fmt.Sprintf("; Nomad ignores what stands in plugin %q beside config { }: move it in there", p.Name)})
		}
		if len(inside.Blocks) == 0 {
			mine = append(mine, hcl.EmptyBody())
		}
		for _, config := range inside.Blocks {
			mine = append(mine, config.Body)
		}
	}
	return mine, named, outside, nil
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

func (p Plugin) decode(body hcl.Body, found hclform.Mistakes, into any) error {
	value, diags := p.value(body)
	for _, err := range hcltext.Mistakes(diags) {
		found = append(found, hclform.Mistake{Problem: err.Error()})
	}
	if !value.IsWhollyKnown() { // the rest of it cannot be looked at
		return errors.New(found.Error())
	}
	packed, err := pack(value)
	if err != nil {
		return err
	}
	var numbers hclform.Mistakes
	if err := Decode(packed, into); err != nil && !errors.As(err, &numbers) {
		return err
	}
	return append(found, numbers...).Err()
}

func pack(value cty.Value) ([]byte, error) {
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return packed, nil
}

// value decodes a body; values with mistakes are left out.
func (p Plugin) value(body hcl.Body) (cty.Value, hcl.Diagnostics) {
	spec, diags := hclspecutils.Convert(p.Schema)
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	return hcldec.Decode(body, spec, &hcl.EvalContext{Functions: hclutils.GetStdlibFuncs()})
}

// valid is the value of a body without mistakes.
func (p Plugin) valid(body hcl.Body) (cty.Value, error) {
	value, diags := p.value(body)
	if diags.HasErrors() {
		return cty.NilVal, hcltext.Error(diags)
	}
	return value, nil
}

// Decode reads a configuration, as Nomad hands it to a plugin, into a pointer to its form,
// see hclform.Fill.
func Decode(packed []byte, into any) error {
	var tree any
	if err := base.MsgPackDecode(packed, &tree); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if _, ok := tree.(map[string]any); !ok {
		return fmt.Errorf("decode: %T is not a block", tree)
	}
	return hclform.Fill(tree, into)
}
