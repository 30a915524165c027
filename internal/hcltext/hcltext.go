// SPDX-License-Identifier: MPL-2.0

// Package hcltext names the mistakes of a text in HCL: every one, on a line of its own,
// and once.
package hcltext

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"

	"github.com/hashicorp/hcl/v2"
)

// Mistakes makes one error per diagnostic, so that all are seen: the errors of HCL name the first
// and count the others. Diagnostics of one place follow from one mistake there, and are one.
func Mistakes(diags hcl.Diagnostics) []error {
	var errs []error
	for at, d := range diags {
		if at > 0 && d.Subject != nil && diags[at-1].Subject != nil && *d.Subject == *diags[at-1].Subject {
			continue
		}
		if d.Severity == hcl.DiagError {
			errs = append(errs, d)
		}
	}
	return errs
}

// Error is all of Mistakes, nil for none.
func Error(diags hcl.Diagnostics) error { return errors.Join(Mistakes(diags)...) }

// keyBefore finds the key of an attribute in the text before its value.
var keyBefore = regexp.MustCompile(`(\w+)"?\s*[=:]\s*$`)

// Types makes diagnostics of gohcl about values of a wrong type name the key, the value and what
// is valid, and returns these keys: their values were read as zero.
func Types(text []byte, diags hcl.Diagnostics) (keys []string) {
	for _, d := range diags {
		if d.Summary != "Unsuitable value type" || d.Context == nil || !d.Context.CanSliceBytes(text) {
			continue
		}
		key := keyBefore.FindSubmatch(text[bytes.LastIndexByte(text[:d.Context.Start.Byte], '\n')+1 : d.Context.Start.Byte])
		if key == nil {
			continue
		}
		keys = append(keys, string(key[1]))
		d.Summary = fmt.Sprintf("%s: %.80s is not valid", key[1], d.Context.SliceBytes(text))
	}
	return keys
}
