// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"strings"
	"testing"
)

// Allocs that Nomad starts on a node each are known as such: room for two of them on one
// node is none.
func TestAllocsThatTakeANodeEach(t *testing.T) {
	body := jobWith(`"Meta":{"gpu":"1"}`)
	inGroup := func(field string) string { return strings.Replace(body, `"Name":"g",`, `"Name":"g",`+field+`,`, 1) }
	for name, tc := range map[string]struct {
		body string
		want Distinct
	}{
		"nothing said":              {body, ""},
		"distinct_hosts":            {inGroup(`"Constraints":[{"Operand":"distinct_hosts"}]`), DistinctInGroup},
		"distinct_hosts = false":    {inGroup(`"Constraints":[{"Operand":"distinct_hosts","RTarget":"false"}]`), ""},
		"distinct_property, name":   {inGroup(`"Constraints":[{"Operand":"distinct_property","LTarget":"${node.unique.name}"}]`), DistinctInGroup},
		"distinct_property, one ID": {inGroup(`"Constraints":[{"Operand":"distinct_property","LTarget":"${node.unique.id}","RTarget":"1"}]`), DistinctInGroup},
		"two per node":              {inGroup(`"Constraints":[{"Operand":"distinct_property","LTarget":"${node.unique.id}","RTarget":"2"}]`), ""},
		"of a rack":                 {inGroup(`"Constraints":[{"Operand":"distinct_property","LTarget":"${meta.rack}"}]`), ""},
		"static port":               {inGroup(`"Networks":[{"Mode":"host","ReservedPorts":[{"Label":"rpc","Value":29500}]}]`), DistinctInGroup},
		"dynamic port":              {inGroup(`"Networks":[{"DynamicPorts":[{"Label":"rpc"}]}]`), ""},
		"static port of a task":     {jobWith(`"Meta":{"gpu":"1"},"Resources":{"Networks":[{"ReservedPorts":[{"Label":"rpc","Value":29500}]}]}`), DistinctInGroup},
	} {
		j, err := Read([]byte(tc.body), Query{})
		if err != nil || j.Asks[0].Distinct != tc.want {
			t.Errorf("%s: %v, %q, want %q", name, err, j.Asks[0].Distinct, tc.want)
		}
	}
}
