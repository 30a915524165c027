// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

// TestOneQueueThatIsWrongHoldsUpNoOther: of queues that do not go together, all that do are taken, whatever the
// order of their names.
func TestOneQueueThatIsWrongHoldsUpNoOther(t *testing.T) {
	queue := func(name string, milli int64, namespaces ...string) Queue {
		return Queue{Name: name, QuotaMilli: milli, Namespaces: namespaces, Borrow: true}
	}
	file := Default()
	file.Queues = []Queue{queue("of-the-file", 1000, "ops")}
	before := []Queue{queue("a", 1000, "team-a"), queue("b", 1000, "team-b"), queue("gone", 1000, "team-c")}
	for name, row := range map[string]struct {
		next    []Queue
		want    map[string]int64 // GPU milli by queue
		refused string
	}{
		"all go together":              {[]Queue{queue("a", 2000, "team-a"), queue("b", 2000, "team-b")}, map[string]int64{"a": 2000, "b": 2000}, ""},
		"a namespace of the file's":    {[]Queue{queue("a", 2000, "team-a", "ops"), queue("b", 2000, "team-b")}, map[string]int64{"a": 1000, "b": 2000}, `queue "a" stays as it was: `},
		"a namespace moves up":         {[]Queue{queue("a", 2000, "team-a", "team-b"), queue("b", 2000, "ops"), queue("c", 3000)}, map[string]int64{"a": 1000, "b": 1000, "c": 3000}, `namespace "ops"`},
		"it is let go of later":        {[]Queue{queue("a", 2000, "team-a", "team-b"), queue("b", 2000), queue("c", 1, "ops")}, map[string]int64{"a": 2000, "b": 2000}, `queue "c" stays as it was: `},
		"a new one that is not valid":  {[]Queue{queue("a", 2000, "team-a"), queue("new", 2000, "ops")}, map[string]int64{"a": 2000}, `queue "new" stays`},
		"a parent that does not exist": {[]Queue{{Name: "a", Parent: "nobody", Borrow: true}, queue("b", 5000, "team-b")}, map[string]int64{"a": 1000, "b": 5000}, `"nobody"`},
		"none are left":                {nil, map[string]int64{}, ""},
	} {
		c, taken, refused := file.Adopt(before, row.next)
		got := map[string]int64{}
		for _, q := range taken {
			got[q.Name] = q.QuotaMilli
			if has := c.Queue(q.Name); has == nil || has.QuotaMilli != q.QuotaMilli {
				t.Errorf("%s: queue %s is %+v", name, q.Name, has)
			}
		}
		if !maps.Equal(got, row.want) || len(c.Queues) != len(row.want)+1 {
			t.Errorf("%s: queues %v, want %v", name, got, row.want)
		}
		if (row.refused == "") != (len(refused) == 0) || row.refused != "" && !strings.Contains(errors.Join(refused...).Error(), row.refused) {
			t.Errorf("%s: refused %v, want %q", name, refused, row.refused)
		}
	}
}
