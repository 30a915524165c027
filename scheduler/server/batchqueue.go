// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// checkBatchQueue refuses a batch job for a node pool with a batch job queue of Nomad's own
// (batch_queue, from 2.1 on). Such a queue hands the scheduler one job at a time and waits until all
// of its allocations are placed, so a job that waits for GPUs would stop the pool for everybody.
// Nomad before 2.1 knows no such queue, and neither have the built-in node pools one.
//
// Source: developer.hashicorp.com/nomad/docs/concepts/scheduling/batch-job-queue and
// .../api-docs/queue. It was not run against Nomad 2.1.
func (p *proxy) checkBatchQueue(ctx context.Context, s *submission) error {
	ask := s.job.Asks[0] // type and node pool are the job's
	if ask.JobType != "batch" || ask.NodePool == "default" || ask.NodePool == "all" {
		return nil
	}
	token, err := p.ownToken()
	if err != nil {
		return err
	}
	query := url.Values{"node_pool": {ask.NodePool}, "namespace": {ask.Namespace}, "per_page": {"1"}}
	got, err := p.nomadGet(ctx, "/v1/queue/jobs?"+query.Encode(), token)
	if err != nil {
		return err
	}
	var queue struct{ Type string }
	if got.status != http.StatusOK || json.Unmarshal(got.body, &queue) != nil || queue.Type == "" || queue.Type == "passthrough" {
		return nil
	}
	return &admit.Refusal{
		Status: http.StatusUnprocessableEntity,
		Text:   fmt.Sprintf("node pool %q has a batch_queue of Nomad's (%s), in which a job that waits for GPUs stops all batch jobs behind it", ask.NodePool, queue.Type),
		Details: []string{
			"choose another node pool, or remove batch_queue from this one: the placement service orders GPU jobs itself",
		},
	}
}
