// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Parents says on which GPU each MIG instance of a group lies, by UUID: instances
// of one profile share a group, whichever GPU they are on.
type Parents map[string]string

// String is the attribute, ordered by GPU and instance:
//
//	GPU-a=MIG-1,MIG-2;GPU-b=MIG-3
func (p Parents) String() string {
	instances := map[string][]string{}
	for instance, parent := range p {
		instances[parent] = append(instances[parent], instance)
	}
	parts := make([]string, 0, len(instances))
	for _, parent := range slices.Sorted(maps.Keys(instances)) {
		parts = append(parts, parent+"="+strings.Join(slices.Sorted(slices.Values(instances[parent])), ","))
	}
	return strings.Join(parts, ";")
}

// ParseParents reads the attribute.
func ParseParents(text string) (Parents, error) {
	p := Parents{}
	if text == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		parent, instances, found := strings.Cut(part, "=")
		if !found || parent == "" || instances == "" {
			return nil, fmt.Errorf("parents %q: %q is not GPU=instance,instance", text, part)
		}
		for instance := range strings.SplitSeq(instances, ",") {
			p[instance] = parent
		}
	}
	return p, nil
}
