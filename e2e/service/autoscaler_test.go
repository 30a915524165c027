// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// fleet stands for a cloud's group of machines: one allocation is one machine.
const fleet = `job "fleet" {
  group "node" {
    count = 1
    task "t" {
      driver = "raw_exec"
      config {
        command = "sleep"
        args    = ["100000"]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
`

// serving is a job that scales itself.
const serving = `job "serve" {
  group "g" {
    scaling {
      min = 1
      max = 2
      policy {
        evaluation_interval = "1s"
        check "busy" {
          source       = "prometheus"
          query        = "max(DCGM_FI_DEV_GPU_UTIL)"
          query_window = "10s"
          strategy "target-value" {
            target = 50
          }
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      meta {
        gpu = "4G"
      }
      config {
        command = "sleep"
        args    = ["100000"]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
`

// autoscaler is the configuration of HashiCorp's, which speaks to Nomad through the service.
const autoscaler = `log_level = "debug"
http {
  bind_port = %s
}
nomad {
  address = %q
}
policy {
  dir              = %q
  default_cooldown = "2s"
}
apm "prometheus" {
  driver = "prometheus"
  config = {
    address = "http://%s"
  }
}
strategy "threshold" {
  driver = "threshold"
}
strategy "target-value" {
  driver = "target-value"
}
target "nomad" {
  driver = "nomad-target"
}
`

// policyOfTheGuide is the autoscaling guide's, in seconds where it has minutes, with the fleet
// instead of a cloud.
func policyOfTheGuide(t *testing.T) string {
	t.Helper()
	for _, block := range documents.Fences(t, root, "docs/guides/autoscaling.md") {
		if !strings.HasPrefix(block.Text, "scaling ") {
			continue
		}
		text := regexp.MustCompile(`(?s)    target "aws-asg" \{.*?\n    \}`).ReplaceAllString(block.Text, "    target \"nomad\" {\n      Job       = \"fleet\"\n      Group     = \"node\"\n      Namespace = \"default\"\n    }")
		for guide, here := range map[string]string{`= "10m"`: `= "2s"`, `query_window = "1m"`: `query_window = "10s"`, `evaluation_interval = "1m"`: `evaluation_interval = "1s"`, `[30m:1m]`: `[15s:1s]`} {
			if !strings.Contains(text, guide) {
				t.Fatalf("the guide's policy does not say %s", guide)
			}
			text = strings.ReplaceAll(text, guide, here)
		}
		return text
	}
	t.Fatal("the guide has no policy")
	return ""
}

// begin starts a program of the test; its log is shown when the test fails.
func begin(t *testing.T, name string, args ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if text, _ := os.ReadFile(path); t.Failed() {
			t.Logf("log of %s:\n%s", name, text[max(0, len(text)-20000):])
		}
	})
}

// TestAutoscaler has HashiCorp's Nomad Autoscaler scale by the guide's policy, from Prometheus and
// through the service: a job that waits has one more node join, and two empty nodes are one too
// many. A job's own policy scales it by how busy its GPU is.
func TestAutoscaler(t *testing.T) {
	program, prometheus := filepath.Join(root, "bin/e2e/nomad-autoscaler"), filepath.Join(root, "bin/e2e/prometheus/usr/bin/prometheus")
	if _, err := os.Stat(program); err != nil {
		t.Skip("nomad-autoscaler takes minutes to build: make test-autoscaler")
	}
	t.Parallel()
	metrics, database := freeAddress(t), freeAddress(t)
	machine := cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "t4.hcl"), GPUs: cut}
	watched := machine
	watched.GPUs += fmt.Sprintf("\nmetrics {\n  address = %q\n}\n", metrics)
	ctx, c := startNodes(t, watched)
	r := serve(ctx, t, c, quick)
	admits(ctx, t, r)

	dir := t.TempDir()
	write(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf("global: { scrape_interval: 1s }\nscrape_configs:\n- job_name: gpu\n  static_configs: [{ targets: [%q, %q] }]\n", strings.TrimPrefix(r.URL, "http://"), metrics))
	begin(t, prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+database)
	if err := os.Mkdir(filepath.Join(dir, "policies"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "policies", "nodes.hcl"), policyOfTheGuide(t))
	_, port, _ := strings.Cut(freeAddress(t), ":")
	write(t, filepath.Join(dir, "agent.hcl"), fmt.Sprintf(autoscaler, port, r.URL, filepath.Join(dir, "policies"), database))
	if _, err := c.Run(ctx, fleet); err != nil {
		t.Fatal(err)
	}
	admitted(ctx, t, r, job{id: "full", count: 2, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "full", 2)
	begin(t, program, "agent", "-config", filepath.Join(dir, "agent.hcl"))

	admitted(ctx, t, r, job{id: "waits", meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "fleet", 2)
	machine.Name = "node-1"
	if _, err := c.Join(ctx, machine); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "waits", 1)
	for _, id := range []string{"full", "waits"} {
		if err := c.Stop(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	runs(ctx, t, c.API, "fleet", 1)
	scaleByUse(ctx, t, c, r)
	doubleBooked(ctx, t, c.API)
}

// scaleByUse has a service grow while its GPU is busy.
func scaleByUse(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "serve.nomad.hcl")
	write(t, file, serving)
	if code, text := nomad(ctx, t, r.URL, "job", "run", "-detach", file); code != 0 {
		t.Fatal(text)
	}
	runs(ctx, t, c.API, "serve", 1)
	state, err := c.Nodes[0].State()
	if err != nil {
		t.Fatal(err)
	}
	states, err := state.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		if err := sim.Update(c.Nodes[0].SimDir(), s.UUID, func(c *sim.Condition) {
			c.Processes = []sim.Process{{PID: 1 << 22, MemoryMiB: 100, Percent: 90}}
		}); err != nil {
			t.Fatal(err)
		}
	}
	runs(ctx, t, c.API, "serve", 2)
}
