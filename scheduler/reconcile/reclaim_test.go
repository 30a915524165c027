// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// reclaimQueues guarantee two teams so many GPUs each.
func reclaimQueues(a, b int) string {
	return fmt.Sprintf("preemption {\n min_run_time = \"0s\"\n}\nqueue \"a\" {\n gpus = %d\n namespaces = [\"a\"]\n}\nqueue \"b\" {\n gpus = %d\n namespaces = [\"b\"]\n}\n", a, b)
}

// batchJob is a job of one alloc that ends by itself, on a machine if that is not negative.
func batchJob(namespace, id string, gpus, priority, machine int) json.RawMessage {
	where := ""
	if machine >= 0 {
		where = onNode(machine)
	}
	raw := strings.Replace(string(slowJob(namespace, id, "0", 1, priority, where)), `"service"`, `"batch"`, 1)
	return json.RawMessage(strings.Replace(raw, `"gpu": "1"`, fmt.Sprintf(`"gpu": "%d"`, gpus), 1))
}

// The free GPUs of one node are kept for a job for all of them, which waits for firm work to end. Another
// job of its queue takes back on the other node what is of the queue's guarantee, as one where it has
// several allocs. Neither these nor what goes there start in the room that is kept.
func TestSeveralAllocsTakeBackWhatWasLentBesideRoomThatIsKept(t *testing.T) {
	for name, meta := range map[string]string{"a group": `"gpu": "1"`, "a gang": `"gpu": "1", "gpu_gang": "true"`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 3, reclaimQueues(2, 3))
				h.submit(t.Context(), batchJob("a", "firm0", 1, 90, 0))
				h.submit(t.Context(), batchJob("a", "firm1", 1, 90, 1))
				h.seconds(5)
				for i := range 2 {
					h.submit(t.Context(), batchJob("a", fmt.Sprint("lent", i), 1, 50, 1))
				}
				h.seconds(5)
				h.submit(t.Context(), batchJob("b", "all", 3, 70, 0))
				h.seconds(5)
				own := strings.Replace(string(batchJob("b", "own", 1, 30, -1)), `"Count": 1`, `"Count": 2`, 1)
				h.submit(t.Context(), json.RawMessage(strings.Replace(own, `"gpu": "1"`, meta, 1)))
				h.seconds(90)
				if got := h.running(); got != "a/firm0 a/firm1 b/own" {
					t.Errorf("%s run\n%s", got, strings.Join(h.log, "\n"))
				}
				for _, a := range h.allocs {
					if a.stub.JobID == "own" && a.stub.NodeID != "node-1" {
						t.Errorf("own runs in room that is kept\n%s", strings.Join(h.log, "\n"))
					}
				}
			})
		})
	}
}

// One job takes back what one GPU was lent for, as above.
func TestWhatWasLentComesBackBesideRoomThatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 2, 3, reclaimQueues(3, 3))
		h.submit(t.Context(), batchJob("a", "firm0", 1, 90, 0))
		h.submit(t.Context(), batchJob("a", "firm1", 1, 90, 1))
		h.submit(t.Context(), batchJob("a", "firm2", 1, 90, 1))
		h.seconds(5)
		h.submit(t.Context(), batchJob("a", "lent", 1, 50, -1))
		h.seconds(5)
		h.submit(t.Context(), batchJob("b", "all", 3, 70, 0))
		h.seconds(5)
		if got := h.running(); got != "a/firm0 a/firm1 a/firm2 a/lent" {
			t.Fatalf("%s run", got)
		}
		h.submit(t.Context(), batchJob("b", "own", 1, 30, -1))
		h.seconds(90)
		if got := h.running(); got != "a/firm0 a/firm1 a/firm2 b/own" {
			t.Errorf("%s run\n%s", got, strings.Join(h.log, "\n"))
		}
	})
}

// A job waits for all GPUs of the only node, of which one is kept for it. Another job of its queue takes
// the place of lent work there, and no more; it leaves again when firm work has ended and all is there
// for the first.
func TestWhatWasLentComesBackWhereRoomIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 3, reclaimQueues(1, 3))
		h.submit(t.Context(), batchJob("a", "firm", 1, 90, -1))
		h.seconds(5)
		h.submit(t.Context(), batchJob("a", "lent", 1, 50, -1))
		h.seconds(5)
		h.submit(t.Context(), batchJob("b", "all", 3, 70, -1))
		h.seconds(5)
		h.submit(t.Context(), batchJob("b", "own", 1, 30, -1))
		h.seconds(90)
		if got := h.running(); got != "a/firm b/own" {
			t.Fatalf("%s run\n%s", got, strings.Join(h.log, "\n"))
		}
		h.finish(h.jobs["a/firm"])
		h.seconds(90)
		if got := h.running(); got != "b/all" {
			t.Errorf("%s run\n%s", got, strings.Join(h.log, "\n"))
		}
	})
}

// A job with a high priority that could only borrow the free GPUs of a node keeps them from no job that
// would take them back from it.
func TestNoRoomIsKeptForWhatWouldHaveToGiveItBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 3, reclaimQueues(1, 2))
		h.submit(t.Context(), batchJob("a", "firm", 1, 90, -1))
		h.seconds(5)
		h.submit(t.Context(), batchJob("a", "all", 3, 70, -1))
		h.seconds(90)
		h.submit(t.Context(), batchJob("b", "own", 2, 30, -1))
		h.seconds(5)
		if got := h.running(); got != "a/firm b/own" {
			t.Errorf("%s run\n%s", got, strings.Join(h.log, "\n"))
		}
	})
}
