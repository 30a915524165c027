// SPDX-License-Identifier: MPL-2.0

package version

import "fmt"

// OldestNomad and NewestNomad bound the releases of Nomad that tests ran on. A test holds them
// to e2e/versions, which says when they ran.
const (
	OldestNomad = "1.11.3"
	NewestNomad = "2.0.6-dev"
)

// WasTested is whether a release of Nomad, such as "1.11.3" or "2.0.6-dev+ent", lies between
// the oldest and the newest that tests ran on.
func WasTested(nomad string) bool {
	oldest, _ := number(OldestNomad)
	newest, _ := number(NewestNomad)
	n, ok := number(nomad)
	return ok && n >= oldest && n <= newest
}

// number orders releases.
func number(release string) (int, bool) {
	var major, minor, patch int
	if _, err := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return 0, false
	}
	return (major*1000+minor)*1000 + patch, true
}
