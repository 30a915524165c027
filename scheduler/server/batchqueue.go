// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// checkBatchQueue refuses a batch job for a node pool that has a [nomad.BatchQueue]: waiting
// there it would stop the pool for everybody. The built-in node pools can have none.
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
	got, err := p.nomadGet(ctx, nomad.BatchQueuesPath+"?"+query.Encode(), token)
	if err != nil {
		return err
	}
	queue := nomad.ParseBatchQueue(got.body)
	if got.status != http.StatusOK || queue == nil {
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

// ownToken is the service's own token; empty where it has none.
func (p *proxy) ownToken() (string, error) {
	if p.config.Token == nil {
		return "", nil
	}
	return p.config.Token()
}
