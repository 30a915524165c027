package admit

import "strings"

// The HTTP statuses of a job that makes no sense, and of a change that what runs
// does not allow.
const (
	badRequest = 400
	conflict   = 409
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
