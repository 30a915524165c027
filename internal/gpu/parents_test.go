// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"maps"
	"testing"
)

func TestParentsAreReadAsTheyWereWritten(t *testing.T) {
	p := Parents{"MIG-3": "GPU-b", "MIG-2": "GPU-a", "MIG-1": "GPU-a"}
	const want = "GPU-a=MIG-1,MIG-2;GPU-b=MIG-3"
	if got := p.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if back, err := ParseParents(want); err != nil || !maps.Equal(back, p) {
		t.Errorf("read back as %v, %v", back, err)
	}
	if none, err := ParseParents(""); err != nil || len(none) != 0 {
		t.Errorf("nothing is read as %v, %v", none, err)
	}
	for _, bad := range []string{"GPU-a", "=MIG-1", "GPU-a=", "GPU-a=MIG-1;"} {
		if _, err := ParseParents(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
