// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"reflect"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A handle is what its users can call on it, embedded parts included: at most 40 methods, and all of
// them together at most 120.
func TestHandlesStaySmall(t *testing.T) {
	const most, mostInAll = 40, 120
	all := 0
	for _, handle := range []any{&state.Cluster{}, &state.Capacity{}, &state.Queue{}, &state.Tx{}} {
		n := reflect.TypeOf(handle).NumMethod()
		t.Logf("%T: %d methods", handle, n)
		if all += n; n > most {
			t.Errorf("%T has %d methods, want at most %d", handle, n, most)
		}
	}
	if all > mostInAll {
		t.Errorf("the handles have %d methods in all, want at most %d", all, mostInAll)
	}
	// Views read: all that Tx adds to a Reader changes something.
	for _, guard := range []any{&state.Reader{}, &state.State{}} {
		if n := reflect.TypeOf(guard).NumMethod(); n > most/2 {
			t.Errorf("%T has %d methods, want at most %d", guard, n, most/2)
		}
	}
}
