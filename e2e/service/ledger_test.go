// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// entries are what a replica's ledger has of a job, or an error.
func entries(ctx context.Context, r *replica, job string) ([]ledger.Row, error) {
	var report ledger.Report
	query := url.Values{"by": {"entry"}, "from": {time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}}
	_, err := r.API.Raw().Query("/api/v1/gpu/ledger?"+query.Encode(), &report, (&api.QueryOptions{}).WithContext(ctx))
	var rows []ledger.Row
	for _, row := range report.Rows {
		if row.Job == job {
			rows = append(rows, row)
		}
	}
	return rows, err
}

// entered waits until a replica's ledger has one entry of a job, whose end is as Nomad
// has it.
func entered(ctx context.Context, t *testing.T, c *api.Client, r *replica, job string) ledger.Row {
	t.Helper()
	var row ledger.Row
	until(ctx, t, "enter job "+job, 3*time.Minute, func() (bool, string) {
		rows, err := entries(ctx, r, job)
		alloc, _, failed := c.Jobs().Allocations(job, true, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil || failed != nil || len(rows) != 1 || len(alloc) != 1 {
			return false, fmt.Sprintf("%d allocs, entries %+v, %v, %v", len(alloc), rows, err, failed)
		}
		row = rows[0]
		begin, end := time.Unix(0, alloc[0].CreateTime), alloc[0].TaskStates["sleep"].FinishedAt
		if row.Alloc != alloc[0].ID || row.To == nil || !row.From.Equal(begin) || !row.To.Equal(end) || row.Ended != "complete" {
			return false, fmt.Sprintf("entry %+v from %s to %s, alloc %s from %s to %s", row, row.From, row.To, alloc[0].ID, begin, end)
		}
		return true, ""
	})
	return row
}

// TestLedger has two replicas keep one each, kills the leader while a job runs, and both
// while another ends: each ledger has one entry per job, with Nomad's own times, and what the
// plugin measured of the task.
func TestLedger(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	dirs := []string{t.TempDir(), t.TempDir()}
	config := func(dir string) string {
		return fmt.Sprintf("monitor_update_interval = \"1s\"\nqueue \"q\" {\n gpus = 2\n namespaces = [\"default\"]\n}\n"+
			"ledger {\n path = %q\n currency = \"EUR\"\n price \"T4\" {\n  gpu_hour = 3600\n }\n}\n", filepath.Join(dir, "ledger"))
	}
	first := serve(ctx, t, c, config(dirs[0]))
	second := serve(ctx, t, c, config(dirs[1]))
	batch := func(id string, seconds int) job {
		return job{id: id, kind: "batch", seconds: seconds, meta: map[string]string{"gpu": "4G"}}
	}
	admitted(ctx, t, first, batch("over-a-kill", 15))
	runs(ctx, t, c.API, "over-a-kill", 1)
	first.kill(syscall.SIGKILL)
	ended(ctx, t, c, "over-a-kill", 1)
	row := entered(ctx, t, c.API, second, "over-a-kill")
	if row.Queue != "q" || row.Node != "node-0" || row.Type != "T4" || row.Task != "sleep" || row.AskedGiB != 4 || row.GPUHours <= 0 {
		t.Errorf("entered %+v", row)
	}
	admitted(ctx, t, second, batch("unseen", 8)) // after the failover
	runs(ctx, t, c.API, "unseen", 1)
	second.kill(syscall.SIGKILL)
	ended(ctx, t, c, "unseen", 1)
	for _, dir := range dirs {
		again := serve(ctx, t, c, config(dir))
		listens(ctx, t, again)
		for _, id := range []string{"over-a-kill", "unseen"} {
			entered(ctx, t, c.API, again, id)
		}
		code, text, _ := scheduler(ctx, t, t.TempDir(), again.URL, "report", "-csv")
		if lines := strings.Split(strings.TrimSpace(text), "\n"); code != 0 || len(lines) != 2 || !strings.HasPrefix(lines[1], "q,2,") {
			t.Errorf("report -csv: exit %d\n%s", code, text)
		}
		code, text, _ = scheduler(ctx, t, t.TempDir(), again.URL, "report", "-by", "job")
		if code != 0 || !strings.Contains(text, "unseen") || !strings.Contains(text, " EUR") {
			t.Errorf("report -by job: exit %d\n%s", code, text)
		}
		again.kill(syscall.SIGTERM)
	}
}

// TestTheServiceDecidesWithoutItsLedger: a full disk or a database that is away stops neither
// the start of the service nor a decision. It is told, and what was held meanwhile is entered
// when the disk takes something.
func TestTheServiceDecidesWithoutItsLedger(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	dir := tmpfs.Dir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "nr_inodes=1"); err != nil {
		t.Fatal(err)
	}
	away := serve(ctx, t, c, fmt.Sprintf("ledger {\n postgres = \"postgres:///gpus?sslmode=disable&host=%s\"\n}\n", t.TempDir()))
	full := serve(ctx, t, c, fmt.Sprintf("ledger {\n path = %q\n}\n", filepath.Join(dir, "ledger")))
	tells := func(r *replica, outage bool) {
		t.Helper()
		until(ctx, t, fmt.Sprintf("outage of the ledger: %v", outage), time.Minute, func() (bool, string) {
			var health struct {
				Status   string
				Problems []struct{ Reason string }
			}
			_, err := r.API.Raw().Query("/api/v1/gpu/health", &health, (&api.QueryOptions{}).WithContext(ctx))
			told := len(health.Problems) == 1 && strings.HasPrefix(health.Problems[0].Reason, "the ledger has not been written since ")
			return err == nil && told == outage && (health.Status == "degraded") == outage, fmt.Sprintf("%+v, %v", health, err)
		})
		_, metrics := get(ctx, t, r.URL+"/metrics")
		if want := fmt.Sprintf("nomad_gpu_ledger_writable %d\n", map[bool]int{false: 1}[outage]); !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not say %q", want)
		}
	}
	tells(away, true)
	tells(full, true)
	admitted(ctx, t, full, job{id: "meanwhile", kind: "batch", seconds: 3, meta: map[string]string{"gpu": "4G"}})
	ended(ctx, t, c, "meanwhile", 1)
	if _, err := entries(ctx, full, "meanwhile"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a ledger that is away says %v", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "nr_inodes=1000"); err != nil {
		t.Fatal(err)
	}
	tells(full, false)
	entered(ctx, t, c.API, full, "meanwhile")
	tells(away, true)
}

// TestLedgerMeasures: what the device plugin measures of a task comes through Nomad's
// client statistics into the ledger.
func TestLedgerMeasures(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, fmt.Sprintf("monitor_update_interval = \"1s\"\nledger {\n path = %q\n}\n", t.TempDir()))
	admitted(ctx, t, r, job{id: "measured", kind: "batch", seconds: 20, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "measured", 1)
	ended(ctx, t, c, "measured", 1)
	if row := entered(ctx, t, c.API, r, "measured"); row.UsedGPUs == nil || row.UsedGiB == nil || row.GPUHours <= 0 {
		t.Errorf("nothing was measured: %+v", row)
	}
}
