// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The HTTP statuses of a job that makes no sense, of one that is not allowed, and of a change
// that what runs does not allow.
const (
	badRequest    = 400
	forbidden     = 403
	conflict      = 409
	unprocessable = 422
)

// Refusal is the answer to a job that is not admitted.
type Refusal struct {
	// Status is the HTTP status, 4xx.
	Status int
	// Text is one sentence; Details say more, a line each.
	Text    string
	Details []string
}

// Error is the text and the details, one per line, as the nomad command prints
// them.
func (r *Refusal) Error() string {
	return strings.Join(append([]string{r.Text}, r.Details...), "\n  ")
}

// malformed is the refusal of a job that asks for something that makes no
// sense on any cluster.
func malformed(text string, details ...string) *Refusal {
	return &Refusal{Status: badRequest, Text: text, Details: details}
}

// LongestName is how many bytes the names of a job and its groups may have that asks for GPUs. Nomad
// has no limit, but a job read under a much longer name does not fit into a request any
// more, so that the job could neither be held nor evicted. A job that came around the service may have
// a longer name all the same; where it is recorded for people, CutName cuts it.
const LongestName = 1024

// CutName is a name as records for people have it: those that the service admits whole.
func CutName(name string) string { return CutText(name, LongestName) }

// CutText cuts a text after that many bytes, or just before where that would be within a character, and
// marks that with an ellipsis.
func CutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// CheckNames refuses a job with GPUs whose ID, or whose groups' names, are too long.
func (j *Job) CheckNames() error {
	if len(j.Asks) == 0 {
		return nil
	}
	if len(j.ID) > LongestName {
		return tooLong("the job's ID", j.ID)
	}
	for i := range j.Asks {
		if len(j.Asks[i].Group) > LongestName {
			return tooLong("the name of a group", j.Asks[i].Group)
		}
	}
	return nil
}

func tooLong(what, name string) error {
	return &Refusal{Status: unprocessable, Text: fmt.Sprintf("%s, %.40q..., has %d bytes: a job that asks for GPUs may have at most %d", what, name, len(name), LongestName)}
}

// CheckChildren refuses a job with GPUs and children where what Nomad starts of a child could not wait.
func (j *Job) CheckChildren() error {
	is, starts := "", ""
	switch {
	case !j.parameterized && !j.periodic || len(j.Asks) == 0:
		return nil
	case j.Type == "sysbatch":
		is, starts = "of type sysbatch", "on nodes that join"
	case j.periodic && j.parameterized:
		is, starts = "that is periodic", "by the clock after a dispatch"
	default:
		return j.checkScaling()
	}
	return &Refusal{Status: unprocessable, Text: fmt.Sprintf("a periodic or parameterized job %s cannot ask for GPUs: what it starts %s could neither wait for its quota nor be taken back", is, starts),
		Details: []string{"make it one of the two"}}
}

// CheckDispatch refuses a dispatch whose meta has keys that were decided when its parent was
// registered: Nomad gives the child the devices of its parent, and the meta of the dispatch.
func CheckDispatch(meta map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if slices.Contains(keys, key) {
			return &Refusal{Status: unprocessable, Text: fmt.Sprintf("meta %s = %.80q is not valid in a dispatch: what a parameterized job has of GPUs, and which queue pays for it, is decided when it is registered", key, meta[key]),
				Details: []string{"write it in the job, and register that; for another value, register another job"}}
		}
	}
	return nil
}

// Forbidden is a refusal with status 403: of what the rules of a queue do not allow.
func Forbidden(format string, args ...any) error {
	return &Refusal{Status: forbidden, Text: fmt.Sprintf(format, args...)}
}
