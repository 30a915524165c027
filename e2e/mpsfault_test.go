// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// A fatal error of one program takes the GPU from all that share its MPS server, and
// the server takes no other before all of them have ended. So their tasks are started
// again, each is told whose program it was, and the GPU serves again.
func TestTasksRecoverFromAFaultOfTheirMPSServer(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	node := c.Nodes[0]
	said := map[string]string{"guilty": "a program of this task had a fatal GPU error", "neighbor": "a program of another task had a fatal GPU error"}
	allocs, pids, uuid := map[string]*api.Allocation{}, []int{}, ""
	for _, id := range []string{"guilty", "neighbor"} {
		s := startSurvivor(t, ctx, c, id, restartsAtOnce)
		allocs[id], uuid = s.alloc, s.uuid
		for _, pid := range s.pids {
			inside, err := pidInMachine(pid)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(pids, inside) {
				pids = append(pids, inside) // the guilty one's first
			}
		}
	}
	dir, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	state, err := dir.GPU(uuid)
	if err != nil {
		t.Fatal(err)
	}
	log := fmt.Sprintf("[2026-11-22 09:00:00.000 Other 77] Client process %d encountered a fatal GPU error.\n", pids[0])
	clients := strings.Trim(fmt.Sprint(pids), "[]")
	if err := errors.Join(os.WriteFile(node.Path(state.MPS.LogDir+"/server.log"), []byte(log), 0o644),
		os.WriteFile(node.Path(state.MPS.CommandDir()+"/behavior"), []byte("fault\nclients "+clients+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for id, alloc := range allocs {
		_, err := c.WaitAlloc(ctx, alloc.ID, "to start again and say why", func(a *api.Allocation) bool {
			return starts(a) == 2 && a.TaskStates["task"].State == "running" &&
				slices.ContainsFunc(a.TaskStates["task"].Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, said[id]) })
		})
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := node.WaitNode(ctx, cluster.AllHealthy); err != nil {
		t.Fatal(err)
	}
	if now, err := dir.GPU(uuid); err != nil || now.MPS.Fault != nil || now.MPS.Generation != state.MPS.Generation {
		t.Errorf("the MPS server is %+v, %v", now.MPS, err)
	}
}
