// SPDX-License-Identifier: MPL-2.0

package service

import (
	"testing"
	"time"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/api"
)

// A batch job's time limit is Nomad's too, which ends the work by it.
func TestNomadEndsWorkByItsTimeLimit(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	self, err := c.API.Agent().Self()
	if err != nil {
		t.Fatal(err)
	}
	config, _ := self.Config["Version"].(map[string]any)
	text, _ := config["Version"].(string)
	if is, err := version.NewVersion(text); err != nil || is.LessThan(version.Must(version.NewVersion("2.0.3"))) {
		t.Skipf("Nomad %s has no max_run_duration: %v", text, err)
	}
	r := serve(ctx, t, c, "")
	j := job{id: "limited", kind: "batch", meta: map[string]string{"gpu": "1G", "gpu_time_limit": "3s"}}
	admitted(ctx, t, r, j)
	until(ctx, t, "be ended by Nomad", 60*time.Second, func() (bool, string) {
		list, _, err := c.API.Jobs().Allocations("limited", true, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil || len(list) == 0 {
			return false, "no alloc"
		}
		return list[0].ClientStatus == "complete" || list[0].ClientStatus == "failed", list[0].ClientStatus + " " + list[0].ClientDescription
	})
}
