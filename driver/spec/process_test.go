// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"strings"
	"testing"
)

// What the kernel takes, to the byte.
func TestCheckProcess(t *testing.T) {
	long := strings.Repeat("x", maxText)
	many := make([]string, 15)
	for i := range many {
		many[i] = long
	}
	room := maxTexts - len(many)*(maxText+perText) - perText
	for _, test := range []struct {
		name      string
		args, env []string
		says      string
	}{
		{"the longest argument and variable", []string{"a", long}, []string{long}, ""},
		{"a longer argument", []string{"a", long + "x"}, nil, "has 131072 bytes, the kernel takes 131071; put it into a file"},
		{"a longer variable", nil, []string{"A=b", "B=" + long}, `environment: variable "B" has 131073 bytes`},
		{"NUL in an argument", []string{"a", "b\x00"}, nil, `argument "b\x00" is not valid text`},
		{"NUL in a variable", nil, []string{"A=b", "B=\x00"}, `environment: variable "B" is not valid text`},
		{"as much as fits", append([]string{strings.Repeat("x", room)}, many...), nil, ""},
		{"a byte more", many, []string{strings.Repeat("x", room+1)}, "environment and arguments have 2097153 bytes together"},
	} {
		err := checkProcess(test.args, test.env)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.says)
		}
	}
}
