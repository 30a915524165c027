// SPDX-License-Identifier: MPL-2.0

// Package hclform describes a block of HCL by its Go form, a struct, and reads values into
// one. A schema for Nomad, a check without Nomad and the decoding follow from one
// description:
//
//	type Mount struct {
//		Target string `codec:"target" required:"true"`
//		Type   string `codec:"type" default:"volume"`
//		Size   int64  `codec:"size"`
//	}
//
// The tag codec names the key. Integers are text in HCL, so that Fill reads them and names
// their keys. A struct is a block, a slice of structs is a block that can be repeated.
package hclform

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-gpu/nomad-gpu/internal/hcltext"
)

// Field is one key of a block.
type Field struct {
	Name string
	// Type is HCL's name of an attribute's type, such as "list(string)"; empty for a block.
	Type     string
	Required bool
	// Default is the literal in HCL of an attribute that is not written; empty for none.
	Default string
	// Block has the keys of a block, which Repeated can be written several times.
	Block    []Field
	Repeated bool
	// Open is a block whose keys are the author's, with values of Type.
	Open bool
}

// Fields describes a form, a struct.
func Fields(form any) []Field { return fields(reflect.TypeOf(form)) }

func fields(form reflect.Type) []Field {
	var all []Field
	for i := range form.NumField() {
		tag := form.Field(i).Tag
		name := tag.Get("codec")
		if name == "" || name == "-" {
			continue
		}
		field := Field{Name: name, Required: tag.Get("required") == "true"}
		kind := form.Field(i).Type
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		switch {
		case kind.Kind() == reflect.Struct:
			field.Block = fields(kind)
		case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct:
			field.Block, field.Repeated = fields(kind.Elem()), true
		default:
			field.Type = typeName(kind)
		}
		if text, ok := tag.Lookup("default"); ok {
			field.Default = text
			if field.Type == "string" {
				field.Default = fmt.Sprintf("%q", text)
			}
		}
		all = append(all, field)
	}
	return all
}

func typeName(kind reflect.Type) string {
	switch kind.Kind() {
	case reflect.Slice:
		return "list(" + typeName(kind.Elem()) + ")"
	case reflect.Map:
		return "map(" + typeName(kind.Elem()) + ")"
	case reflect.Bool:
		return "bool"
	}
	return "string"
}

// typeOf is the type of a name.
func typeOf(name string) cty.Type {
	inside := func(kind string) (cty.Type, bool) {
		rest, ok := strings.CutPrefix(name, kind+"(")
		if !ok {
			return cty.NilType, false
		}
		return typeOf(strings.TrimSuffix(rest, ")")), true
	}
	if of, ok := inside("list"); ok {
		return cty.List(of)
	}
	if of, ok := inside("map"); ok {
		return cty.Map(of)
	}
	switch name {
	case "bool":
		return cty.Bool
	case "number":
		return cty.Number
	}
	return cty.String
}

// Spec is a description for HCL's decoder, equal to what Nomad makes of a plugin's schema.
func Spec(fields []Field) hcldec.Spec {
	object := hcldec.ObjectSpec{}
	for _, f := range fields {
		object[f.Name] = spec(f)
	}
	return object
}

func spec(f Field) hcldec.Spec {
	switch {
	case f.Open:
		return &hcldec.BlockAttrsSpec{TypeName: f.Name, ElementType: typeOf(f.Type), Required: f.Required}
	case f.Repeated:
		return &hcldec.BlockListSpec{TypeName: f.Name, Nested: Spec(f.Block)}
	case f.Block != nil:
		return &hcldec.BlockSpec{TypeName: f.Name, Nested: Spec(f.Block), Required: f.Required}
	}
	attribute := &hcldec.AttrSpec{Name: f.Name, Type: typeOf(f.Type), Required: f.Required}
	if f.Default == "" {
		return attribute
	}
	value := cty.StringVal(strings.Trim(f.Default, `"`))
	if f.Type == "bool" {
		value = cty.BoolVal(f.Default == "true")
	}
	return &hcldec.DefaultSpec{Primary: attribute, Default: &hcldec.LiteralSpec{Value: value}}
}

// ReadJSON reads a block in JSON, as Nomad's API has the config of a task. Beside Mistakes
// it is the tree without them; an error is about all of it.
func ReadJSON(text []byte, fields []Field) (map[string]any, Mistakes, error) {
	file, diags := hclparse.NewParser().ParseJSON(text, "config")
	if diags.HasErrors() {
		return nil, nil, hcltext.Error(diags)
	}
	value, diags := hcldec.Decode(file.Body, Spec(fields), nil)
	var found Mistakes
	for _, d := range diags {
		found = append(found, Mistake{Problem: d.Detail})
	}
	if !value.IsWhollyKnown() {
		return nil, nil, found
	}
	plain, err := ctyjson.Marshal(value, value.Type())
	if err != nil {
		return nil, nil, err
	}
	var tree map[string]any
	return tree, found, json.Unmarshal(plain, &tree)
}
