package config

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

func TestConfigurationsInDocumentsAreValid(t *testing.T) {
	for _, block := range documents.HCL(t, "../..", "queue", "placement", "preemption", "listen", "nomad") {
		if _, err := Parse(block.Path, []byte(block.Text)); err != nil {
			t.Errorf("%s:%d: %v", block.Path, block.Line, err)
		}
	}
}
