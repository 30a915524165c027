// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
)

// newRun is a service beside a model of Nomad.
func newRun(t *testing.T, machines, gpus int, text string) *modelRun {
	t.Helper()
	c, err := config.Parse("model.hcl", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	h := &modelRun{model: newModel(t, machines, gpus), rng: rand.New(rand.NewPCG(1, 7)), store: nomadtest.NewStore(), config: c}
	h.lead(t.Context())
	return h
}

// gangJob is a gang of whole GPUs.
func gangJob(id string, count, priority int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "c", "Type": "batch", "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d,
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": "1", "gpu_gang": "true"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, id, id, priority, count))
}
