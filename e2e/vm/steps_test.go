// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func testBase(ctx context.Context, l *lane) {
	l.Log(l.run(ctx, `
. /etc/os-release; echo "$PRETTY_NAME, kernel $(uname -r)"
systemctl --version | head -n 1; containerd --version; runc --version | head -n 1`))
	if got := l.run(ctx, "cat /proc/1/comm; stat -f -c %T /sys/fs/cgroup; cat /sys/module/apparmor/parameters/enabled"); got != "systemd\ncgroup2fs\nY" {
		l.Fatalf("PID 1, control groups and AppArmor are %q", got)
	}
}

func testNode(ctx context.Context, l *lane) {
	l.run(ctx, l.install())
	l.nodeReady(ctx)
	l.Log(l.run(ctx, "nomad version | head -n 1"))
}

// resident are the examples that run through all steps; two-gpus makes room for
// whole-gpu.
var resident = []string{"all-slices", "burst", "mig", "no-gpu", "slice", "whole-gpu"}

func testExamples(ctx context.Context, l *lane) {
	examples, err := filepath.Glob(filepath.Join(root, "examples", "*.nomad.hcl"))
	if err != nil || len(examples) != len(resident)+1 {
		l.Fatalf("there are %d examples, %v", len(examples), err)
	}
	l.example(ctx, "two-gpus")
	stop, cancel := within(ctx)
	defer cancel()
	if err := l.cluster.Stop(stop, "two-gpus"); err != nil {
		l.Fatal(err)
	}
	for _, job := range resident {
		l.example(ctx, job)
	}
}

// example runs an example and checks which GPUs its program can open.
func (l *lane) example(ctx context.Context, job string) {
	l.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples", job+".nomad.hcl"))
	if err != nil {
		l.Fatal(err)
	}
	l.submit(ctx, string(text))
	alloc := l.running(ctx, job)
	ctx, cancel := within(ctx)
	defer cancel()
	report, err := l.cluster.Report(ctx, alloc, alloc.Job.TaskGroups[0].Tasks[0].Name)
	if err != nil {
		l.Fatal(err)
	}
	if want := cluster.GPUsOfExamples[job]; len(report.Opens()) != want {
		l.Errorf("%s opens GPUs %v, want %d", job, report.Opens(), want)
	}
}

// pids are the first processes of our containers, by container, and the MPS daemons
// with their servers, by their scopes. It waits for a containerd that is being started.
func (l *lane) pids(ctx context.Context) map[string]string {
	l.Helper()
	out := ""
	l.eventually(ctx, "containerd answers", func() (bool, string) {
		var err error
		out, err = l.Exec(ctx, listPIDs)
		return err == nil, out
	})
	found := map[string]string{}
	for line := range strings.Lines(out) {
		if name, pid, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[name] = pid
		}
	}
	return found
}

const listPIDs = `
ctr -n nomad-gpu tasks ls | awk 'NR > 1 && $3 == "RUNNING" {print $1, $2}'
cd /sys/fs/cgroup/system.slice
for scope in nomad-gpu-mps-*.scope; do
  [ ! -d "$scope" ] || echo "$scope $(sort -n "$scope/cgroup.procs" | paste -sd,)"
done`

// survives does something to the machine, and checks that every task and daemon goes
// on and that the node then takes work. It returns what the script printed.
func (l *lane) survives(ctx context.Context, script string) string {
	l.Helper()
	before := l.pids(ctx)
	if len(before) < len(resident) {
		l.Fatalf("only %v run", before)
	}
	events := l.events(ctx)
	out := l.run(ctx, script)
	l.nodeReady(ctx)
	for _, job := range resident {
		l.running(ctx, job)
	}
	if after := l.pids(ctx); !maps.Equal(before, after) {
		l.Errorf("before there were %v,\nafter  there are %v", before, after)
	}
	if after := l.events(ctx); !slices.Equal(events, after) {
		l.Errorf("tasks were told\n%s\nand afterwards\n%s", strings.Join(events, "\n"), strings.Join(after, "\n"))
	}
	l.takesWork(ctx)
	return out
}

// takesWork runs a job that ends by itself.
func (l *lane) takesWork(ctx context.Context) {
	l.Helper()
	l.submit(ctx, oneShot)
	ctx, cancel := within(ctx)
	defer cancel()
	if _, err := l.cluster.WaitAllocs(ctx, "one-shot", "to end", cluster.Terminal, 1); err != nil {
		l.Error(err)
	}
	if _, _, err := l.cluster.API.Jobs().Deregister("one-shot", true, nil); err != nil {
		l.Error(err)
	}
}

const oneShot = `
job "one-shot" {
  type = "batch"
  group "one" {
    task "one" {
      driver = "containerd"
      config {
        image = "localhost/tools:1"
        args  = ["true"]
        entrypoint = ["sh", "-c", "exit 0"]
      }
      resources {
        device "nvidia/slice" { count = 1 }
      }
    }
  }
}
`

// events are what the resident tasks were told of their MPS daemons.
func (l *lane) events(ctx context.Context) []string {
	l.Helper()
	var all []string
	for _, job := range resident {
		alloc := l.running(ctx, job)
		for task, state := range alloc.TaskStates {
			for _, e := range state.Events {
				if e.Type == "Driver" && strings.Contains(e.DisplayMessage, "MPS daemon") {
					all = append(all, fmt.Sprintf("%s/%s: %s", job, task, e.DisplayMessage))
				}
			}
		}
	}
	return all
}

// pidOf is the first process of a job's task.
func (l *lane) pidOf(ctx context.Context, job string) string {
	l.Helper()
	alloc := l.running(ctx, job)
	pid := l.run(ctx, fmt.Sprintf(`ctr -n nomad-gpu tasks ls | awk '$1 ~ /%s/ && $3 == "RUNNING" {print $2}'`, alloc.ID[:8]))
	if pid == "" || strings.Contains(pid, "\n") {
		l.Fatalf("the processes of %s are %q", job, pid)
	}
	return pid
}

func testConfined(ctx context.Context, l *lane) {
	pid := l.pidOf(ctx, "slice")
	if profile := l.run(ctx, "cat /proc/"+pid+"/attr/current"); !strings.HasSuffix(profile, "(enforce)") {
		l.Errorf("its AppArmor profile is %q", profile)
	}
	if seccomp := l.run(ctx, "sed -n 's/^Seccomp:\\s*//p' /proc/"+pid+"/status"); seccomp != "2" {
		l.Errorf("its seccomp mode is %s", seccomp)
	}
	if same := l.run(ctx, "[ $(readlink /proc/"+pid+"/ns/cgroup) != $(readlink /proc/1/ns/cgroup) ] && echo own || echo host"); same != "own" {
		l.Errorf("its cgroup namespace is the %s's", same)
	}
	// What the program finds itself: its own group at the root of what it sees.
	if limit := l.run(ctx, "cat /proc/"+pid+"/root/sys/fs/cgroup/memory.max || true"); limit != fmt.Sprint(64<<20) {
		l.Errorf("it finds %q as its memory limit", limit)
	}
}

func testOOM(ctx context.Context, l *lane) {
	l.submit(ctx, `
job "hungry" {
  type = "batch"
  group "hungry" {
    reschedule { attempts = 0 }
    # An emulated machine may be too slow even for Nomad's own start of a task.
    restart {
      attempts = 5
      interval = "1h"
      delay    = "5s"
    }
    task "hungry" {
      driver = "containerd"
      config {
        image      = "localhost/tools:1"
        entrypoint = ["tail", "/dev/zero"]
      }
      resources { memory = 32 }
    }
  }
}`)
	l.eventually(ctx, "a task that was out of memory says so", func() (bool, string) {
		said := l.said(ctx, "hungry")
		return strings.Contains(said, "OOM Killed"), said
	})
	if _, _, err := l.cluster.API.Jobs().Deregister("hungry", true, nil); err != nil {
		l.Error(err)
	}
}

func testStatistics(ctx context.Context, l *lane) {
	alloc := l.running(ctx, "slice")
	var memory *api.MemoryStats
	l.eventually(ctx, "there are statistics", func() (bool, string) {
		usage, err := l.cluster.API.Allocations().Stats(alloc, nil)
		if err != nil || usage.ResourceUsage == nil || usage.ResourceUsage.MemoryStats == nil {
			return false, fmt.Sprint(err)
		}
		memory = usage.ResourceUsage.MemoryStats
		return memory.Usage > 0, fmt.Sprintf("%+v", memory)
	})
	// Kernels before 6.0 count no maximum, and what is not counted is not 0.
	pid := l.pidOf(ctx, "slice")
	peak := l.run(ctx, "cat /proc/"+pid+"/root/sys/fs/cgroup/memory.peak 2>/dev/null || echo none")
	measured := slices.Contains(memory.Measured, "Max Usage")
	if counted := peak != "none"; measured && (!counted || memory.MaxUsage == 0) {
		l.Errorf("the kernel's maximum is %s; Nomad was told %+v", peak, memory)
	}
}

func testScopes(ctx context.Context, l *lane) {
	scopes := 0
	for unit := range l.pids(ctx) {
		if strings.HasPrefix(unit, "nomad-gpu-mps-") && strings.HasSuffix(unit, ".scope") {
			scopes++
		}
	}
	if scopes != daemons {
		l.Errorf("%d MPS daemons are in scopes, want %d: %v", scopes, daemons, l.pids(ctx))
	}
	l.Log(l.run(ctx, "systemctl --no-pager --plain --no-legend list-units 'nomad-gpu-mps-*'"))
}

func testRestartNomad(ctx context.Context, l *lane) {
	l.survives(ctx, "systemctl restart nomad; systemctl daemon-reload")
}

// Without KillMode=process systemd ends all that is in the service's group.
func testRestartGroup(ctx context.Context, l *lane) {
	l.run(ctx, `mkdir -p /etc/systemd/system/nomad.service.d
printf '[Service]\nKillMode=control-group\n' >/etc/systemd/system/nomad.service.d/kill.conf
systemctl daemon-reload`)
	l.survives(ctx, "systemctl stop nomad; systemctl start nomad")
	l.run(ctx, "rm -r /etc/systemd/system/nomad.service.d; systemctl daemon-reload")
}

func testRestartContainerd(ctx context.Context, l *lane) {
	l.survives(ctx, "systemctl restart containerd")
}

func testKills(ctx context.Context, l *lane) {
	for _, victims := range []string{"nomad-device-gpu", "nomad-driver-containerd", "'nomad agent'", "/usr/bin/containerd$", "'nomad agent' nomad-d /usr/bin/containerd$"} {
		l.survives(ctx, "for name in "+victims+"; do pkill -KILL -f -- \"$name\" || echo \"no $name\"; done")
	}
}

// While no agent runs, both plugins find something to say: an XID that ends nothing, and
// a containerd that is away when the driver tidies up.
func testSystemLog(ctx context.Context, l *lane) {
	out := l.survives(ctx, `
mkdir -p /etc/systemd/system/nomad.service.d
printf '[Service]\nRestart=no\n' >/etc/systemd/system/nomad.service.d/restart.conf
systemctl daemon-reload
gpu=$(/opt/gpu/bin/nomad-device-gpu inventory /etc/nomad.d/nomad.hcl 2>/dev/null | awk 'match($0, /GPU-[0-9a-f-]+/) && !gpu { gpu = substr($0, RSTART, RLENGTH) } END { print gpu }')
since=@$(date +%s)
systemctl kill --kill-whom=main -s KILL nomad
systemctl stop containerd
echo "{\"gpus\": {\"$gpu\": {\"xids\": [63]}}}" >/var/lib/nomad-gpu-simulation/control.json
said() { journalctl --no-pager -o cat --since "$since" -t "$1"; }
waits() { for n in $(seq 600); do said "$1" | grep "$2" >/dev/null && return; sleep 1; done; echo "$1 has not said $2 but:"; said "$1"; return 1; }
waits nomad-device-gpu 'the driver reported an XID'
waits nomad-driver-containerd 'tidying up was not complete'
said nomad-device-gpu
said nomad-driver-containerd
rm -r /etc/systemd/system/nomad.service.d; systemctl daemon-reload
systemctl start containerd nomad`)
	if strings.Contains(out, `"@level"`) || strings.Contains(out, "[TRACE]") || strings.Contains(out, "[DEBUG]") {
		l.Errorf("the system log has\n%.2000s", out)
	}
	l.Logf("%d lines, such as\n%.500s", strings.Count(out, "\n")+1, out)
}

// Our containers name their control groups themselves, whatever the driver that
// containerd was told to use for Kubernetes.
func testCgroupDrivers(ctx context.Context, l *lane) {
	l.run(ctx, `mkdir -p /etc/containerd; cp /etc/containerd/config.toml /root/config.toml 2>/dev/null || true
containerd config default | sed 's/SystemdCgroup = false/SystemdCgroup = true/' >/etc/containerd/config.toml
grep -q 'SystemdCgroup = true' /etc/containerd/config.toml`)
	l.survives(ctx, "systemctl restart containerd")
	l.run(ctx, "rm /etc/containerd/config.toml; [ ! -e /root/config.toml ] || mv /root/config.toml /etc/containerd/config.toml")
	l.survives(ctx, "systemctl restart containerd")
}

// A daemon that is slow to answer, because everything is, must not be replaced: its
// tasks would lose their contexts. The hogs, twenty per core, last longer than all
// questions together that may stay unanswered before a daemon counts as not ready. They
// run in a session's slice, so that an emulated processor leaves Nomad enough to live.
func testOverload(ctx context.Context, l *lane) {
	l.Log("load:", l.survives(ctx, `for hog in $(seq $((20 * $(nproc)))); do timeout 120 sh -c 'while :; do :; done' & done
sleep 100; cat /proc/loadavg; wait || true`))
	l.Log("slow answers:", l.run(ctx, "journalctl --no-pager -o cat -u nomad --since -5min | grep -c 'daemon is slow' || true"))
}

func testReboot(ctx context.Context, l *lane) {
	l.comesBack(ctx, func() error { return l.Reboot(ctx) })
}

func testPlug(ctx context.Context, l *lane) {
	l.run(ctx, "sync")
	l.comesBack(ctx, func() error {
		l.PowerOff()
		return l.PowerOn(ctx)
	})
}

// comesBack boots the machine anew and checks that every task runs again, in the same
// allocation and so on the same GPUs.
func (l *lane) comesBack(ctx context.Context, boot func() error) {
	l.Helper()
	allocs := map[string]string{}
	for _, job := range resident {
		allocs[job] = l.running(ctx, job).ID
	}
	before := l.pids(ctx)
	if err := boot(); err != nil {
		l.Fatal(err)
	}
	l.nodeReady(ctx)
	for _, job := range resident {
		id := allocs[job]
		l.eventually(ctx, job+" runs again", func() (bool, string) {
			out, err := l.Exec(ctx, fmt.Sprintf(`ctr -n nomad-gpu tasks ls | awk '$1 ~ /%s/ && $3 == "RUNNING" {print $1}'`, id[:8]))
			return err == nil && out != "" && before[out] == "", out
		})
		if alloc := l.running(ctx, job); alloc.ID != id {
			l.Errorf("%s was alloc %s and is alloc %s", job, id, alloc.ID)
		}
	}
}

func testSuites(ctx context.Context, l *lane) {
	// The tests have containerds of their own; a client beside them, and what collects the
	// logs of its tasks, only take CPU. A purge of the packages has stopped both.
	if _, err := l.Exec(ctx, "systemctl -q is-active nomad"); err == nil {
		l.stops(ctx, resident)
		l.run(ctx, "systemctl stop nomad")
	}
	for _, suite := range suites {
		out, err := l.Exec(ctx, `
cd /opt/gpu/tests/src/`+suite+`
mkdir -p /var/tmp/suite && export TMPDIR=/var/tmp/suite NOMAD_GPU_PROGRAMS=/opt/gpu/tests/programs CONTAINERD_BIN_DIR=/opt/gpu/containerd
./suite.test -test.short -test.timeout 90m -test.v -test.run '`+*tests+`' >/var/tmp/suite.log 2>&1 && code=0 || code=$?
grep -E '^(---|[[:space:]]+---|PASS|FAIL|panic|[[:space:]]+([a-z_]+_test.go|↪))' /var/tmp/suite.log | grep -v -- '--- PASS: .*/' || true
exit $code`)
		failed := strings.Count(out, "\n--- FAIL")
		l.Logf("%s: %d passed, %d failed, %d skipped", suite, strings.Count(out, "--- PASS"), failed, strings.Count(out, "--- SKIP"))
		if err != nil {
			l.Errorf("%s: %v", suite, err)
		}
	}
}
