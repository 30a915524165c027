// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// The groups of a job that Nomad starts by itself start together, so that the queue has to pay for all
// of them: what is too much is refused.
func TestGroupsThatStartByThemselvesArePaidForTogether(t *testing.T) {
	const one = servicetest.OneGPU
	two := strings.Replace(one, "gpus = 1", "gpus = 2", 1)
	const below = "queue \"top\" {\n gpus = 1\n borrow = false\n}\nqueue \"q\" {\n parent = \"top\"\n gpus = 0.5\n namespaces = [\"default\"]\n}\nqueue \"r\" {\n parent = \"top\"\n gpus = 0.5\n allow_namespaces = [\"default\"]\n}\n"
	system, later := servicetest.Ask("p", "1", 1), servicetest.Ask("p", "1", 1)
	system.JobType, later.JobType, later.Later = "system", "batch", true
	for name, row := range map[string]struct {
		config string
		ask    admit.Ask
		queue  string // of the second group
		status int
	}{
		"system":                            {config: one, ask: system, status: 403},
		"system, and there is quota":        {config: two, ask: system},
		"system, in two queues":             {config: below, ask: system, queue: "r", status: 403},
		"with children":                     {config: one, ask: later, status: 403},
		"with children, there may be quota": {config: two, ask: later},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, row.config, servicetest.Machine("a", 2))
			second := row.ask
			second.Group, second.Queue = "h", row.queue
			d, err := b.Decide(t.Context(), []admit.Ask{row.ask, second}, true)
			if refusal := (*admit.Refusal)(nil); row.status > 0 {
				if !errors.As(err, &refusal) || refusal.Status != row.status || !strings.Contains(refusal.Text, `group "h"`) {
					t.Errorf("got %+v, %v", d, err)
				}
				return
			}
			if err != nil || d[0].Hold != nil || d[1].Hold != nil {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}
