// SPDX-License-Identifier: MPL-2.0

package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

const everyKey = `
log_level                 = "DEBUG"
monitor_update_interval   = "15s"
resource_change_threshold = 0.1
default_resource_name     = "nvidia"
memory_gb                 = { T4 = 15, B200 = 192 }
resource_name {
  gpu    = "gpu"
  nvidia = "nvidia/card"
  amd    = "amd/gpu"
  intel  = "intel/gpu"
  npu    = "huawei/npu"
}
nomad {
  address             = "https://nomad:4646"
  region              = "eu"
  token_file          = "/secrets/token"
  ca_file             = "ca.pem"
  cert_file           = "cert.pem"
  key_file            = "key.pem"
  tls_server_name     = "server.eu.nomad"
  variables_namespace = "gpu"
}
listen {
  address             = "0.0.0.0:4656"
  advertise           = "https://gpu.example:4656"
  cert_file           = "cert.pem"
  key_file            = "key.pem"
  client_ca_file      = "ca.pem"
  ca_file             = "replicas.pem"
  page_url            = "https://gpu.example/gpu/"
  max_body_bytes      = 4096
  requests_per_second = 5
  burst               = 10
  request_timeout     = "10s"
  audit_file          = "audit.jsonl"
  max_connections     = 50
  max_connections_per_client = 40
}
placement {
  policy               = "SPREAD"
  gpu_weight           = 0.5
  memory_weight        = 0.2
  cpu_weight           = 0.1
  fragmentation_weight = 0.2
  measured             = 0.25
  avoid_hot            = false
  candidates           = 10
  headroom_wait        = "2m"
  expected_models      = ["B200"]
}
preemption {
  enabled          = false
  dry_run          = true
  max_per_minute   = 3
  max_per_job      = 2
  max_per_queue    = 20
  min_run_time     = "5m"
  min_priority_gap = 10
  hold_direct_jobs = true
  prefer           = "evict"
}
fairness {
  half_life = "2h"
  order     = "shortest"
}
rebalance {
  enabled   = true
  interval  = "1m"
  max_moves = 7
}
reservation {
  default_ttl = "1m"
  max_ttl     = "1h"
}
telemetry {
  traces {
    endpoint     = "https://otel.example:4318"
    ca_file      = "otel.pem"
    sample_ratio = 0.25
  }
}
ledger {
  path        = "/var/lib/ledger"
  keep        = "48h"
  max_size_mb = 5
  measure     = false
  currency    = "EUR"
  price "H100" {
    from     = "2026-10-01"
    gpu_hour = 2.5
    gib_hour = 0.01
  }
}
replica { lock_ttl = "20s" }
queue "research" {
  gpus       = 8
  max_gpus   = 12.5
  max_gpu_memory_gb = 1000.5
  namespaces = ["research"]
}
queue "vision" {
  parent           = "research"
  gpus             = 2.5
  gpu_memory_gb    = 80
  borrow           = false
  namespaces       = ["vision"]
  allow_namespaces = ["guests"]
  models           = ["A100"]
  node_pools       = ["gpu"]
  datacenters      = ["dc1"]
  max_priority     = 70
  protected        = true
  min_run_time     = "10m"
  idle_after       = "45m"
  idle_action      = "evict"
  order            = "arrival"
  constraint {
    attribute = "$${attr.kernel.name}"
    value     = "linux"
  }
}
`

func TestEveryKeyIsRead(t *testing.T) {
	c, err := Parse("test.hcl", []byte(everyKey))
	if err != nil {
		t.Fatal(err)
	}
	vision := c.Queue("vision")
	for name, ok := range map[string]bool{
		"level":      c.LogLevel == "DEBUG",
		"interval":   c.MonitorInterval == 15*time.Second && c.ChangeThresholdMilli == 100,
		"memory":     c.ModelMemoryMiB["T4"] == 15*1024 && c.ModelMemoryMiB["B200"] == 192*1024 && c.ModelMemoryMiB["A100"] == 80*1024,
		"resources":  c.ResourceNames["nvidia"] == "nvidia/card" && c.DefaultResource == "nvidia",
		"nomad":      c.Nomad.Region == "eu" && c.Nomad.VariablesNamespace == "gpu" && c.Nomad.TLSServerName == "server.eu.nomad",
		"ledger":     c.Ledger == Ledger{"/var/lib/ledger", "", 48 * time.Hour, 5 << 20, false, "EUR"},
		"traces":     c.Traces == Traces{"https://otel.example:4318/v1/traces", "otel.pem", 0.25},
		"prices":     len(c.Prices) == 1 && c.Prices[0] == ledger.Price{For: "H100", From: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), GPUHour: 2_500_000, GiBHour: 10_000},
		"listen":     c.Listen.MaxBodyBytes == 4096 && c.Listen.RequestsPerSecond == 5 && c.Listen.AuditFile == "audit.jsonl" && c.Listen.RequestTimeout == 10*time.Second && c.Listen.MaxConnections == 50 && c.Listen.MaxConnectionsPerClient == 40,
		"replicas":   c.Listen.CAFile == "replicas.pem" && c.Listen.Advertise == "https://gpu.example:4656" && c.Listen.PageURL == "https://gpu.example/gpu/",
		"placement":  c.Placement.Policy == place.PolicySpread && c.Placement.Weights.GPUMilli == 500 && c.Placement.Weights.MeasuredMilli == 250 && c.Placement.Weights.HeatMilli == 0 && c.Placement.Candidates == 10 && c.Placement.Weights.HeadroomWait == 2*time.Minute && slices.Equal(c.ExpectedModels, []string{"B200"}),
		"fairness":   c.HalfLife == 2*time.Hour && c.OrderOf("") == OrderShortest && c.OrderOf("research") == OrderShortest && c.OrderOf("vision") == OrderArrival,
		"preemption": c.Preemption == Preemption{DryRun: true, MaxPerMinute: 3, MaxPerJob: 2, MaxPerQueue: 20, MinRunTime: 5 * time.Minute, MinGap: 10, HoldDirect: true, Prefer: PreferEvict},
		"rebalance":  c.Rebalance == Rebalance{Enabled: true, Interval: time.Minute, MaxMoves: 7},
		"ttl":        c.Reservation == Reservation{DefaultTTL: time.Minute, MaxTTL: time.Hour} && c.Replica.LockTTL == 20*time.Second,
		"quota":      vision.QuotaMilli == 2500 && vision.QuotaMemoryMiB == 80*1024 && !vision.Borrow && vision.Parent == "research",
		"rules":      vision.Protected && vision.MaxPriority == 70 && *vision.MinRunTime == 10*time.Minute && vision.IdleAfter == 45*time.Minute && vision.IdleAction == IdleEvict && vision.Constraints[0].Operator == "=",
		"max":        c.Queue("research").MaxMilli == 12500 && c.Queue("research").MaxMemoryMiB == 1024512 && c.Queue("research").Borrow,
	} {
		if !ok {
			t.Errorf("%s is not as written", name)
		}
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for text, says := range map[string]string{
		`log_levle = "INFO"`:                                                                  "log_levle",
		`log_level = "LOUD"`:                                                                  "not one of TRACE",
		`monitor_update_interval = "30"`:                                                      "not a duration",
		`monitor_update_interval = "1ms"`:                                                     "too short",
		`resource_change_threshold = 1.5`:                                                     "from 0 to 1",
		`resource_change_threshold = 0.0505`:                                                  "three decimals",
		`default_resource_name = "tpu"`:                                                       "not one of gpu",
		`memory_gb = { T4 = -1 }`:                                                             "memory_gb",
		`resource_name { nvidia = "a b" }`:                                                    "not a device name",
		`nomad { cert_file = "x" }`:                                                           "go together",
		`ledger { path = "ledger" }`:                                                          `ledger.path: "ledger" is not valid (an absolute path`,
		`ledger { postgres = "db.example" }`:                                                  `ledger.postgres: not valid (a URL such as`,
		`ledger { postgres = "postgres://u:secret@db/gpus" }`:                                 "a password in the URL is not valid",
		`ledger { postgres = "postgres://u@db/gpus?sslmode=on" }`:                             `ledger.postgres: sslmode: "on" is not valid (disable, allow,`,
		`ledger { postgres = "postgres://u@db/gpus?password=secret" }`:                        "a password in the URL is not valid",
		"ledger {\n path = \"/var/lib/x\"\n postgres = \"postgres://u@db/gpus\"\n}":           "exclude each other",
		"telemetry {\n traces {\n endpoint = \"otel:4318\"\n }\n}":                            "telemetry.traces.endpoint: not valid (the URL of",
		"telemetry {\n traces {\n endpoint = \"http://u:secret@otel:4318\"\n }\n}":            "OTEL_EXPORTER_OTLP_HEADERS",
		"telemetry {\n traces {\n endpoint = \"http://otel\"\n sample_ratio = 2\n }\n}":       "telemetry.traces.sample_ratio: 2 is not valid (0 to 1)",
		"telemetry {\n traces {\n endpoint = \"http://otel\"\n ca_file = \"x.pem\"\n }\n}":    `telemetry.traces.ca_file: "x.pem" is not valid`,
		`ledger { keep = "1h" }`:                                                              "too short",
		`ledger { max_size_mb = 0 }`:                                                          "too small",
		"ledger {\n price \"H100\" {\n }\n}":                                                  "neither gpu_hour nor gib_hour",
		"ledger {\n price \"\" {\n gpu_hour = 1\n }\n}":                                       "a GPU type such as",
		"ledger {\n price \"H100\" {\n gpu_hour = -1\n }\n}":                                  `ledger.price "H100": gpu_hour: -1 is not valid (0 to 1000000)`,
		"ledger {\n price \"H100\" {\n gpu_hour = 1\n from = \"October\"\n }\n}":              `from: "October" is not valid (a day, such as`,
		"ledger {\n price \"T4\" {\n gpu_hour = 1\n }\n price \"T4\" {\n gib_hour = 1\n }\n}": "two from the same day on",
		`listen { client_ca_file = "x" }`:                                                     "needs both",
		`listen { max_body_bytes = 1 }`:                                                       "too small",
		`listen { max_connections = 0 }`:                                                      "listen.max_connections 0 is too small; the least is 1",
		`listen { max_connections_per_client = 0 }`:                                           "listen.max_connections_per_client 0 is too small; the least is 1",
		`listen { max_connections_per_client = 5000 }`:                                        "listen.max_connections_per_client: 5000 is not valid (at most max_connections, which is 4096)",
		`placement { policy = "BEST" }`:                                                       "BALANCED, PACK, SPREAD",
		`listen { address = "4656" }`:                                                         `listen.address "4656" is not a host and a port`,
		`listen { address = "127.0.0.1:http" }`:                                               "not a host and a port",
		`placement { candidates = 0 }`:                                                        "the least is 1",
		`placement { headroom_wait = "-1s" }`:                                                 `placement.headroom_wait "-1s" is too short`,
		"queue \"q\" {\n idle_after = \"0s\"\n}":                                              `idle_after "0s" is too short; the least is 1s`,
		`fairness { order = "longest" }`:                                                      `fairness.order: "longest" is not valid (arrival, shortest)`,
		"queue \"q\" {\n order = \"fifo\"\n}":                                                 `order: "fifo" is not valid (arrival, shortest)`,
		"queue \"q\" {\n idle_action = \"kill\"\n}":                                           `idle_action: "kill" is not valid (report, suspend, evict)`,
		`preemption { prefer = "kill" }`:                                                      `preemption.prefer: "kill" is not valid (suspend, evict)`,
		`preemption { max_per_minute = 0 }`:                                                   "the least is 1",
		`replica { lock_ttl = "3s" }`:                                                         "least is 10s",
		`reservation { default_ttl = "48h" }`:                                                 "longer than max_ttl",
		`queue "a" { gpus = -1 }`:                                                             "queue \"a\"",
		`queue "a" { gpsu = 1 }`:                                                              "gpsu",
		`queue "a b" {}`:                                                                      "white space",
		"queue \"a\" {\n gpus = 4\n max_gpus = 2\n}":                                          "below gpus",
		"listen { advertise = \"gpu.example:4656\" }":                                         "listen.advertise \"gpu.example:4656\" is not a URL",
		"queue \"a\" {\n gpu_memory_gb = 4\n max_gpu_memory_gb = 2\n}":                        "below gpu_memory_gb",
		"queue \"a\" {\n gpu_memory_gb = -1\n}":                                               "gpu_memory_gb -1",
		"queue \"a\" { borrow = false }":                                                      "give it gpus or gpu_memory_gb",
		"queue \"a\" {}\nqueue \"a\" {}":                                                      `queue "a" is there twice`,
		`queue "a" { parent = "b" }`:                                                          "does not exist",
		`queue "a" { parent = "a" }`:                                                          "own ancestor",
		"queue \"a\" { parent = \"b\" }\nqueue \"b\" { parent = \"a\" }":                      "own ancestor",
		"queue \"a\" { namespaces = [\"x\"] }\nqueue \"b\" { namespaces = [\"x\"] }":          "belongs to",
		"queue \"a\" { gpus = 2 }\nqueue \"b\" {\n gpus = 3\n parent = \"a\"\n}":              "together 3",
		"queue \"a\" {\n constraint {\n attribute = \"x\"\n operator = \"~\"\n }\n}":          "operator",
	} {
		_, err := Parse("test.hcl", []byte(text))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q in it", text, err, says)
		}
	}
}

// Few connections are those of any client, unless the operator says how many.
func TestAllConnectionsBoundThoseOfAClient(t *testing.T) {
	c, err := Parse("test.hcl", []byte("listen { max_connections = 100 }"))
	if err != nil || c.Listen.MaxConnectionsPerClient != 100 {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestAllComplaintsAreListed(t *testing.T) {
	_, err := Parse("test.hcl", []byte("log_level = \"LOUD\"\nreplica { lock_ttl = \"1s\" }"))
	if err == nil || !strings.Contains(err.Error(), "LOUD") || !strings.Contains(err.Error(), "lock_ttl") {
		t.Errorf("got %v", err)
	}
}

func TestWhatNeedsARestartStays(t *testing.T) {
	parse := func(text string) *Config {
		t.Helper()
		c, err := Parse("test.hcl", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	running := parse(everyKey)
	if changed := parse(everyKey).KeepFixed(running); changed != nil {
		t.Errorf("an unchanged file changes %v", changed)
	}
	next := parse(`
memory_gb = { T4 = 14 }
listen { address = "127.0.0.1:1" }
placement { policy = "PACK" }
`)
	changed := next.KeepFixed(running)
	if got := strings.Join(changed, " "); got != "resource_name memory_gb nomad listen reservation replica ledger (but for prices) telemetry" {
		t.Errorf("it changes %s", got)
	}
	if next.ModelMemoryMiB["T4"] != 15*1024 || next.Listen != running.Listen || next.Placement.Policy != place.PolicyPack || next.Queues != nil {
		t.Errorf("got %+v", next)
	}
}

func TestQueueFromItems(t *testing.T) {
	q, err := QueueFromItems("team", map[string]string{"gpus": "4", "namespaces": `["a", "b"]`, "protected": "true"})
	if err != nil || q.QuotaMilli != 4000 || len(q.Namespaces) != 2 || !q.Protected {
		t.Errorf("got %+v, %v", q, err)
	}
	for key, value := range map[string]string{"gpus": "4\nprotected = true", "gpsu": "4", "parent": "${x}"} {
		if _, err := QueueFromItems("team", map[string]string{key: value}); err == nil {
			t.Errorf("%s = %q was accepted", key, value)
		}
	}
}

func TestTheFileWinsOverVariables(t *testing.T) {
	c, err := Parse("test.hcl", []byte(`queue "a" { gpus = 1 }`))
	if err != nil {
		t.Fatal(err)
	}
	both, err := c.WithQueues([]Queue{{Name: "a", QuotaMilli: 9000}, {Name: "b", QuotaMilli: 2000}})
	if err != nil || both.Queue("a").QuotaMilli != 1000 || both.Queue("b").QuotaMilli != 2000 || c.Queue("b") != nil {
		t.Errorf("got %+v, %v", both, err)
	}
	if _, err := c.WithQueues([]Queue{{Name: "b", Parent: "none"}}); err == nil {
		t.Error("a queue with an unknown parent was accepted")
	}
}

func TestQueueFor(t *testing.T) {
	c, err := Parse("test.hcl", []byte(everyKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		namespace, named, want string
		fails                  bool
	}{
		{namespace: "vision", want: "vision"},
		{namespace: "default"},
		{namespace: "guests", named: "vision", want: "vision"},
		{namespace: "guests"},
		{namespace: "default", named: "vision", fails: true},
		{namespace: "vision", named: "none", fails: true},
	} {
		q, err := c.QueueFor(row.namespace, row.named)
		name := ""
		if q != nil {
			name = q.Name
		}
		if name != row.want || (err != nil) != row.fails {
			t.Errorf("%+v: got %q, %v", row, name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(everyKey)
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse("fuzz.hcl", []byte(text)); err == nil && c == nil {
			t.Fatal("neither configuration nor error")
		}
	})
}

// A value that is no value is one mistake, and two values are two.
func TestAMistakeIsToldOnce(t *testing.T) {
	_, err := Parse("x.hcl", []byte("queue \"q\" {\n gpus = x\n max_gpus = y\n}\n"))
	if err == nil || strings.Count(err.Error(), "Variables not allowed") != 2 || strings.Contains(err.Error(), "value must be known") {
		t.Error(err)
	}
}

// One mistake hides no other, and none is told twice.
func TestEveryMistakeOfTheFileIsNamed(t *testing.T) {
	_, err := Parse("a.hcl", []byte(`color = 1
log_level = "LOUD"
resource_change_threshold = "much"
listen {
  burst = 2.5
  rate  = 1
}
queue "a" {
  gpus         = "x"
  weight       = 3
  max_priority = 0
}
preemption {
  enabled = "maybe"
}
`))
	want := []string{
		`argument named "color"`, `log_level "LOUD"`, `resource_change_threshold: "much" is not valid; Unsuitable value: a number is required`,
		`burst: 2.5 is not valid; Unsuitable value: value must be a whole number`, `argument named "rate"`, `gpus: "x" is not valid`, `argument named "weight"`,
		"max_priority 0 is too small", `enabled: "maybe" is not valid; Unsuitable value: a bool is required`,
	}
	if err == nil || strings.Count(err.Error(), "\n") != len(want) {
		t.Errorf("not %d mistakes: %v", len(want), err)
	}
	for _, says := range want {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %s", err, says)
		}
	}
}
