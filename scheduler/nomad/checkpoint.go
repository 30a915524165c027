// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// A job tells that its work is saved by writing a Variable of this name below its own
// path, nomad/jobs/<job>: all that its allocs computed until then would not be lost.
// What the Variable holds is the job's own affair.
const checkpointName = "/gpu-checkpoint"

const jobsPath = "nomad/jobs/"

// Checkpoints reads when each job told last that its work is saved.
func (c *Client) Checkpoints(ctx context.Context) (map[JobKey]time.Time, error) {
	list, _, err := c.api.Variables().PrefixList(jobsPath, (&api.QueryOptions{Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list checkpoints of jobs: %w", err)
	}
	found := map[JobKey]time.Time{}
	for _, v := range list {
		id, below := strings.CutPrefix(v.Path, jobsPath)
		id, named := strings.CutSuffix(id, checkpointName)
		if below && named && id != "" {
			found[JobKey{v.Namespace, id}] = time.Unix(0, v.ModifyTime)
		}
	}
	return found, nil
}
