// SPDX-License-Identifier: MPL-2.0

package reconcile

// runsOf counts a job's allocs that run: of the old version and canaries.
func (h *modelRun) runsOf(id string) (old, canaries int) {
	for _, a := range h.allocs {
		switch {
		case a.stub.JobID != id || a.stopping > 0:
		case a.canary():
			canaries++
		default:
			old++
		}
	}
	return old, canaries
}
