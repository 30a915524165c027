// SPDX-License-Identifier: MPL-2.0

package api

import (
	"testing"

	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

func FuzzDecode(f *testing.F) {
	f.Add(`{"gpu_count":2,"gpu_type":"V100","memory_gb":32.0}`)
	f.Add(`{"request":"8G,0.5"}`)
	f.Add(`{"gpu_count":1e400}`)
	f.Fuzz(func(t *testing.T, text string) {
		var body SetupRequest
		if err := decode([]byte(text), &body); err != nil {
			return
		}
		reply, err := setupOf(body, framework.TensorFlow)
		if err != nil {
			return
		}
		if _, diagnostics := hclparse.NewParser().ParseHCL([]byte(reply.JobFragment), "fragment"); diagnostics.HasErrors() {
			t.Errorf("%s gave a fragment that is no HCL: %v", text, diagnostics)
		}
	})
}
