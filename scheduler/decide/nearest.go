// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// lack is the shortage of a group that waits: no node could ever hold it, or one GPU comes
// nearest. It is empty where neither can be said.
func lack(tx *state.Tx, key nomad.JobKey, a *admit.Ask) (of state.Lack) {
	group, err := newGroupAsk(tx, key, a)
	if err != nil {
		return of
	}
	var refusal *admit.Refusal
	if _, _, err := shape(group); errors.As(err, &refusal) {
		return state.Lack{Never: true, Text: "no node can ever hold it: " + strings.Join(refusal.Details, "; ")}
	}
	for i := range group.parts {
		near, ok := tx.Planner().Nearest(&group.parts[i].Req)
		if !ok {
			continue
		}
		name := tx.Cluster.Node(near.Node.ID).View.GPUs[near.GPU].Group
		return state.Lack{Text: fmt.Sprintf("nearest is node %s, where %s %s", near.Node.Name, name, near.Text)}
	}
	return of
}
