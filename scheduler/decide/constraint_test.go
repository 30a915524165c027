package decide

import (
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// The constraints that users write are judged as Nomad does.
func TestConstraints(t *testing.T) {
	attributes := map[string]string{"attr.kernel.name": "linux", "attr.cores": "16", "meta.rack": "r1,r2"}
	for _, row := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${attr.kernel.name}", "=", "linux", true},
		{"${attr.kernel.name}", "!=", "linux", false},
		{"${attr.none}", "!=", "x", true},
		{"${attr.none}", "=", "x", false},
		{"${attr.none}", "is_set", "", false},
		{"${attr.none}", "is_not_set", "", true},
		{"${attr.cores}", ">=", "8", true},
		{"${attr.cores}", "<", "9", false},
		{"${attr.kernel.name}", "regexp", "^lin", true},
		{"${meta.rack}", "set_contains", "r1,r2", true},
		{"${meta.rack}", "set_contains", "r1,r3", false},
		{"${meta.rack}", "set_contains_any", "r3, r2", true},
		{"", "distinct_hosts", "true", true},
		{"${attr.cores}", "semver", ">= 1", true}, // Nomad's business
	} {
		if got := holds(admit.Constraint{LTarget: row.left, Operand: row.operand, RTarget: row.right}, attributes); got != row.want {
			t.Errorf("%s %s %s: %v", row.left, row.operand, row.right, got)
		}
	}
	b := newBench(t, "", machine("a", 1), machine("b", 1))
	a := ask("job", "4G", 1)
	a.Constraints = []admit.Constraint{{LTarget: "${node.unique.name}", Operand: "regexp", RTarget: "b"}}
	if d := b.decide(t, a); !slices.Equal(d.Preferred, []string{"id-b"}) {
		t.Errorf("preferred %v", d.Preferred)
	}
}
