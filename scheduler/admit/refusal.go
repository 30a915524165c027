package admit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The HTTP statuses of a job that makes no sense, and of a change that what runs
// does not allow.
const (
	badRequest    = 400
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

// CheckRepeated refuses a job with GPUs that is parameterized and periodic at once: what is
// dispatched starts children by the clock, as many as there are, and Nomad lets none of them be
// changed, so that none could wait or be taken back.
func (j *Job) CheckRepeated() error {
	if !j.repeated || len(j.Asks) == 0 {
		return nil
	}
	return &Refusal{Status: unprocessable, Text: "a job that is parameterized and periodic cannot ask for GPUs: what it starts by the clock after a dispatch could neither wait for its quota nor be taken back",
		Details: []string{"make it one of the two"}}
}

// CheckDispatch refuses a dispatch whose meta says what was decided when its parent was
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
