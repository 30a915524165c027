// SPDX-License-Identifier: MPL-2.0

package agentconfig

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// unquote takes the quotes from names of arguments. Nomad reads the configuration of its agent by
// HCL's first version, which knows names in quotes, as meta { "rack.row" = "7" } has one, and the
// second does not. What is no name without quotes becomes another one of the same length: nothing
// that is read here has such a name. All else keeps its place, for errors name lines and columns.
func unquote(text []byte, file string) []byte {
	tokens, diags := hclsyntax.LexConfig(text, file, hcl.InitialPos)
	if diags.HasErrors() {
		return text // parsing says why
	}
	out := bytes.Clone(text)
	// For each brace that is open: the names in a block, nil in an object, where quotes are as they are.
	names := []map[string]bool{{}}
	for i, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace:
			block := i > 0 && (tokens[i-1].Type == hclsyntax.TokenIdent || tokens[i-1].Type == hclsyntax.TokenCQuote)
			if names = append(names, nil); block {
				names[len(names)-1] = map[string]bool{}
			}
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			names = append(names, nil)
		case hclsyntax.TokenCBrace, hclsyntax.TokenTemplateSeqEnd:
			if len(names) > 1 {
				names = names[:len(names)-1]
			}
		case hclsyntax.TokenEqual:
			in := names[len(names)-1]
			if in == nil || i < 3 || tokens[i-1].Type != hclsyntax.TokenCQuote || tokens[i-2].Type != hclsyntax.TokenQuotedLit || tokens[i-3].Type != hclsyntax.TokenOQuote {
				continue
			}
			copy(out[tokens[i-3].Range.Start.Byte:], bare(string(tokens[i-2].Bytes), in))
		}
	}
	return out
}

// bare is a name without its quotes, with as many bytes as with them.
func bare(name string, others map[string]bool) string {
	if hclsyntax.ValidIdentifier(name) {
		return " " + name + " "
	}
	made := []byte("_" + name + "_")
	for i, c := range made {
		if c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			made[i] = '_'
		}
	}
	for n := 0; others[string(made)]; n++ {
		number := fmt.Sprint(n)
		if len(number) >= len(made) {
			break
		}
		copy(made[len(made)-len(number):], number)
	}
	others[string(made)] = true
	return string(made)
}
