// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
)

// How allocs of a group start.
const alone, asGang, elastic = "alone", "as a gang", "as a gang, of which one is enough"

// severalOf is a service of so many allocs of a whole GPU each.
func severalOf(namespace string, i, count int, priority, gang string) json.RawMessage {
	meta := map[string]string{alone: `"gpu": "1"`, asGang: `"gpu": "1", "gpu_gang": "true"`, elastic: `"gpu": "1", "gpu_gang": "true", "gpu_gang_min": "1"`}[gang]
	job := strings.Replace(string(wholeOf(namespace, i, priority)), `"Count": 1`, fmt.Sprintf(`"Count": %d`, count), 1)
	job = strings.Replace(job, `"gpu": "1"`, meta, 1)
	return json.RawMessage(strings.Replace(job, `"batch"`, `"service"`, 1))
}
