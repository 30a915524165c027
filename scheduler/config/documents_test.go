// SPDX-License-Identifier: MPL-2.0

package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// Whatever a document shows of the service's file, from any of its keys on, is valid.
func TestConfigurationsInDocumentsAreValid(t *testing.T) {
	keys, found := keysOf(reflect.TypeFor[file]()), map[string]bool{}
	for _, block := range documents.HCL(t, "../..", keys...) {
		if _, err := Parse(block.Path, []byte(block.Text)); err != nil {
			t.Errorf("%s:%d: %v", block.Path, block.Line, err)
		}
		found[documents.FirstWord(block)] = true
	}
	for _, key := range []string{"queue", "ledger", "telemetry"} {
		if !found[key] {
			t.Errorf("no document shows %s", key)
		}
	}
}

// keysOf are the keys and blocks of a part of the file.
func keysOf(part reflect.Type) []string {
	keys := make([]string, part.NumField())
	for i := range keys {
		keys[i], _, _ = strings.Cut(part.Field(i).Tag.Get("hcl"), ",")
	}
	return keys
}
