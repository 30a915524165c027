// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
)

// What goes for quota of its own queue holds it until it has stopped: whatever it goes for starts only
// then, also where there is room elsewhere.
func TestQuotaThatIsMadeIsGivenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 3, 2, modelConfig)
		h.stops = map[string]int{"j1": 20, "j2": 20}
		h.submit(t.Context(), whole("a", 1))
		h.submit(t.Context(), whole("a", 2))
		h.seconds(5)
		for _, id := range []string{"j3", "j4"} {
			urgent := strings.NewReplacer(`"Priority": 50`, `"Priority": 90`, `"j1"`, `"`+id+`"`).Replace(string(whole("a", 1)))
			h.submit(t.Context(), json.RawMessage(urgent))
		}
		most := 0
		for range 60 {
			h.seconds(1)
			most = max(most, h.used("a"))
		}
		if got := h.running(); got != "a/j3 a/j4" || most > 32 {
			t.Errorf("%s run, and the queue held %d slices of 32\n%s", got, most, strings.Join(h.log, "\n"))
		}
	})
}
