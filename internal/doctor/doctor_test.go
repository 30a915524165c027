// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

func TestReport(t *testing.T) {
	var r Report
	must.Eq(t, OK, r.Worst())
	host := r.Area("host")
	host.OK("kernel", "%d.%d", 6, 1)
	must.Eq(t, OK, r.Worst())
	r.Area("GPUs").Fail("GPU 0", "replace it", "it fell\noff the bus")
	host.Warn("clock", "run chrony", "%d%% of it is wrong", 100)
	must.Eq(t, Failed, r.Worst())

	var text, encoded bytes.Buffer
	must.NoError(t, r.Write(&text))
	must.Eq(t, `host
  ok       kernel  6.1

GPUs
  failed   GPU 0   it fell
                   off the bus
                   -> replace it

host
  warning  clock   100% of it is wrong
                   -> run chrony

ok: 1, warning: 1, failed: 1
`, text.String())

	must.NoError(t, r.WriteJSON(&encoded))
	var again Report
	must.NoError(t, json.Unmarshal(encoded.Bytes(), &again))
	must.Eq(t, r, again)
}
