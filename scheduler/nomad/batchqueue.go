// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/nomad/api"
)

// BatchQueue is a queue that Nomad keeps for the batch jobs of a node pool (batch_queue, from
// 2.1 on). It hands the scheduler one job at a time and waits until all of its allocations are
// placed, so a job that waits for GPUs stops every batch job behind it.
//
// Source: developer.hashicorp.com/nomad/docs/concepts/scheduling/batch-job-queue and
// .../api-docs/queue. It was not run against Nomad 2.1.
type BatchQueue struct {
	Type string // fifo or dynamic-priority
	Jobs int    // in line, or handed to the scheduler and not placed yet
}

// BatchQueuesPath is Nomad's route of a queue's jobs; the query names a node pool.
const BatchQueuesPath = "/v1/queue/jobs"

// ParseBatchQueue reads an answer of that route; nil: the node pool has no queue.
func ParseBatchQueue(answer []byte) *BatchQueue {
	var queue struct {
		Type      string
		Workloads []struct{}
	}
	if json.Unmarshal(answer, &queue) != nil || queue.Type == "" || queue.Type == "passthrough" {
		return nil
	}
	return &BatchQueue{Type: queue.Type, Jobs: len(queue.Workloads)}
}

// BatchQueue asks for the queue of a node pool; nil: it has none, as before Nomad 2.1.
func (c *Client) BatchQueue(ctx context.Context, pool string) (*BatchQueue, error) {
	ctx, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	var answer json.RawMessage
	_, err := c.api.Raw().Query(BatchQueuesPath, &answer, query(ctx, "node_pool", pool))
	var refused api.UnexpectedResponseError
	switch {
	case errors.As(err, &refused) && refused.StatusCode() == http.StatusNotFound:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the batch queue of node pool %q: %w", pool, err)
	}
	return ParseBatchQueue(answer), nil
}
