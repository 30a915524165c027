// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// rounds is how often each kind is submitted: medians of 60 differed by 2 ms from run to run.
const rounds = 200

// TestAdmissionLatency registers jobs in turn with Nomad itself and through the
// service, with and without a GPU, and compares: what an admission costs beside the
// registration that there would be anyway.
func TestAdmissionLatency(t *testing.T) {
	if os.Getenv("NOMAD_GPU_SCALE") == "" {
		t.Skip("a measurement: make bench-service")
	}
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "listen {\n requests_per_second = 100000\n burst = 100000\n}")
	admits(ctx, t, r)
	one := uint64(1)
	rows := []struct {
		name   string
		to     *api.Client
		job    job
		beside int // the row of Nomad alone
	}{
		{"Nomad alone, without a GPU", c.API, job{}, 0},
		{"through the service, without a GPU", r.API, job{}, 0},
		{"Nomad alone, with a device block", c.API, job{devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &one}}}, 2},
		{"through the service, with a device block", r.API, job{devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &one}}}, 2},
		{"through the service, with gpu = 1G", r.API, job{meta: map[string]string{"gpu": "1G"}}, 2},
	}
	took := make([][rounds]time.Duration, len(rows))
	for round := range rounds {
		for k := range rows {
			i := (k + round) % len(rows) // each comes after each other one
			row := rows[i]
			row.job.id = fmt.Sprintf("latency-%d-%d", i, round)
			time.Sleep(60 * time.Millisecond) // Nomad writes what the job before it starts
			begin := time.Now()
			if err := submit(ctx, row.to, row.job); err != nil {
				t.Fatal(err)
			}
			took[i][round] = time.Since(begin)
		}
		for i := range rows { // the GPUs are needed again
			if _, _, err := c.API.Jobs().Deregister(fmt.Sprintf("latency-%d-%d", i, round), false, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, row := range rows {
		more := took[i]
		for round := range rounds {
			more[round] -= took[row.beside][round]
		}
		t.Logf("%-42s p50 %5.1f ms, p90 %5.1f ms; more than Nomad alone in the same round: p50 %5.1f ms", row.name,
			quantile(took[i], 0.5), quantile(took[i], 0.9), quantile(more, 0.5))
	}
}

// quantile is in milliseconds.
func quantile(of [rounds]time.Duration, q float64) float64 {
	slices.Sort(of[:])
	return 1000 * of[int(q*float64(len(of)))].Seconds()
}
