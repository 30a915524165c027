package decide

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// ErrBlind is wrapped while the service has no view of the cluster.
var ErrBlind = errors.New("no view of the cluster")

// ErrNotLeading is wrapped by a replica that may not decide; the leader can.
var ErrNotLeading = errors.New("this replica does not lead")

func forbidden(format string, args ...any) error {
	return &admit.Refusal{Status: http.StatusForbidden, Text: fmt.Sprintf(format, args...)}
}

// impossible refuses what no GPU can ever hold, with the reasons per kind of
// node.
func impossible(a *admit.Ask, e place.Explanation) error {
	r := &admit.Refusal{
		Status: http.StatusUnprocessableEntity,
		Text:   fmt.Sprintf("group %q asks for %s, which no node can ever hold", a.Group, a),
	}
	for _, why := range e.Reasons {
		r.Details = append(r.Details, place.Reason{Nodes: why.Nodes, Why: why.Why}.String())
	}
	if len(e.Reasons) == 0 {
		r.Details = append(r.Details, "no node is known")
	}
	return r
}
