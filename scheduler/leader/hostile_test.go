// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// A job of very many groups keeps no others waiting: it is refused, or its decision ends
// with the time that it has, and leaves nothing.
func TestAJobOfManyGroupsKeepsNoOthersWaiting(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 2))
	groups := func(n int) (asks []admit.Ask) {
		for i := range n {
			a := servicetest.Ask("many", "1G", 1)
			a.Group = fmt.Sprint("g", i)
			asks = append(asks, a)
		}
		return asks
	}
	var refusal *admit.Refusal
	if _, err := b.Decide(t.Context(), groups(501), true); !errors.As(err, &refusal) || refusal.Status != http.StatusUnprocessableEntity {
		t.Errorf("501 groups: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, dry := range []bool{true, false} {
		if _, err := b.Decide(over, groups(8), dry); !errors.Is(err, context.Canceled) {
			t.Errorf("dry run %v: %v", dry, err)
		}
		if left := b.AllAssumed(); len(left) > 0 {
			t.Errorf("dry run %v: %+v is left", dry, left)
		}
	}
	if _, err := b.Decide(t.Context(), groups(8), false); err != nil {
		t.Error(err)
	}
}
