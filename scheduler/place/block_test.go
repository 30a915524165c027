// SPDX-License-Identifier: MPL-2.0

package place

import (
	"testing"
)

// What is missing is said as the request says it.
func TestReasonsSayWhatIsMissing(t *testing.T) {
	for text, want := range map[string]string{
		"1": "no GPU with nothing on it", "2": "no GPU with nothing on it, and 2 are needed on one node", "0.5": "no GPU with 0.5 of the compute free",
		"8G": "no GPU with 8 GiB free", "8G,0.5": "no GPU with 8 GiB and 0.5 of the compute free", "500M": "no GPU with 500 MiB free",
	} {
		p := testPlanner(t, testNode("a", "A100", 2))
		for i := range 2 {
			held(t, p.snap, string(rune('a'+i)), "a", i, 1000, 10)
		}
		r := ask(t, "r", text)
		e, err := p.Explain(&r, noon)
		if err != nil || len(e.Reasons) != 1 || e.Reasons[0].Why != want {
			t.Errorf("%s: %+v, %v; want %q", text, e.Reasons, err, want)
		}
	}
}
