// SPDX-License-Identifier: MPL-2.0

package record

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// What is written of an exit is read again; what was not written whole is none.
func TestExitsThatAreNoted(t *testing.T) {
	for _, exit := range []runtime.Exit{{Code: 7, At: time.Unix(1e9, 5).UTC()}, {Code: 137, At: time.Unix(1e9, 0).UTC(), OOMKilled: true}} {
		labels := ExitLabels(exit)
		got, seen := ExitOf(labels)
		must.True(t, seen)
		must.Eq(t, exit, got)
		for _, key := range []string{labelExitCode, labelExitAt} {
			was := labels[key]
			labels[key] = "nonsense"
			_, seen = ExitOf(labels)
			must.False(t, seen, must.Sprint(key))
			labels[key] = was
		}
	}
	at := time.Unix(1e9, 0).UTC()
	for _, cut := range []map[string]string{{}, {labelExitCode: "1"}, {labelExitCode: "many", labelExitAt: at.Format(time.RFC3339Nano)}} {
		_, found := ExitOf(cut)
		must.False(t, found)
	}
}
