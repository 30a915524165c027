package service

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

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
		name string
		to   *api.Client
		job  job
	}{
		{"Nomad alone, without a GPU", c.API, job{}},
		{"through the service, without a GPU", r.API, job{}},
		{"Nomad alone, with a device block", c.API, job{devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &one}}}},
		{"through the service, with a device block", r.API, job{devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &one}}}},
		{"through the service, with gpu = 1G", r.API, job{meta: map[string]string{"gpu": "1G"}}},
	}
	const rounds = 60
	took := make([][]time.Duration, len(rows))
	for round := range rounds {
		for i, row := range rows {
			row.job.id = fmt.Sprintf("latency-%d-%d", i, round)
			time.Sleep(60 * time.Millisecond) // Nomad writes what the job before it starts
			begin := time.Now()
			if err := submit(ctx, row.to, row.job); err != nil {
				t.Fatal(err)
			}
			took[i] = append(took[i], time.Since(begin))
		}
		for i := range rows { // the GPUs are needed again
			if _, _, err := c.API.Jobs().Deregister(fmt.Sprintf("latency-%d-%d", i, round), false, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, row := range rows {
		slices.Sort(took[i])
		t.Logf("%-42s p50 %5.1f ms, p90 %5.1f ms", row.name, 1000*took[i][rounds/2].Seconds(), 1000*took[i][rounds*9/10].Seconds())
	}
}
