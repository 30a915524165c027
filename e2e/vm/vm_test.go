// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

var (
	releases = flag.String("debian", "", "Debian releases to test on, such as 12,13")
	tests    = flag.String("tests", ".", "a regular expression: of the driver's own tests, only those whose name it matches")
	selected = flag.String("steps", "", "a regular expression: of the steps that are not vital, only those whose name it matches")
)

// root is the repository: tests run in their package's folder.
var root, _ = filepath.Abs("../..")

// lane is a machine that is a node, and Nomad's API of it.
type lane struct {
	*testing.T
	*Machine
	cluster *cluster.Cluster
	// ran is what was started and is to survive: PIDs by container or by unit.
	debian string
}

// deadline is the longest that one release may take.
const deadline = 3 * time.Hour

func TestMachine(t *testing.T) {
	if *releases == "" {
		t.Skip("takes an hour: make vm runs it, make vm-short its shortest part")
	}
	if reason := missing(); reason != "" {
		t.Skip(reason)
	}
	for _, debian := range strings.Split(*releases, ",") {
		t.Run("debian "+debian, func(t *testing.T) { testMachine(t, debian) })
	}
}

func testMachine(t *testing.T, debian string) {
	wanted, err := regexp.Compile(*selected)
	if err != nil {
		t.Fatalf("-steps: %v", err)
	}
	chosen := slices.DeleteFunc(slices.Clone(steps), func(s step) bool {
		return !s.vital && (testing.Short() && !s.short || !wanted.MatchString(s.name))
	})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var parts []part
	for _, s := range chosen {
		if s.needs != nil {
			parts = append(parts, s.needs)
		}
	}
	l := boot(ctx, t, debian, parts)
	kept := table{filepath.Join(root, "bin", "vm", "debian-"+debian+".md")}
	for _, step := range chosen {
		began := time.Now()
		ok := t.Run(step.name, func(t *testing.T) {
			inner := *l
			inner.T = t
			// Also when the step ends early.
			defer func() {
				took := time.Since(began).Round(time.Second)
				t.Logf("took %s", took)
				if err := kept.enter(step.name, !t.Failed(), began, took); err != nil {
					t.Error(err)
				}
				if t.Failed() {
					inner.diagnose(ctx)
				}
			}()
			step.run(ctx, &inner)
		})
		if !ok && step.vital {
			return
		}
	}
}

// boot starts a fresh machine with the parts of the payload that it is to have.
func boot(ctx context.Context, t *testing.T, debian string, parts []part) *lane {
	t.Helper()
	make := exec.CommandContext(ctx, filepath.Join(root, "e2e", "vm", "image"), debian)
	make.Stderr = os.Stderr
	image, err := make.Output()
	if err != nil {
		t.Fatalf("make the image of Debian %s: %v", debian, err)
	}
	disk, err := payload(ctx, root, t.TempDir(), parts)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(strings.TrimSpace(string(image)), t.TempDir(), disk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.PowerOff)
	began := time.Now()
	if err := m.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("takes commands after %s", time.Since(began).Round(time.Second))
	c, err := cluster.Attach(fmt.Sprintf("http://127.0.0.1:%d", m.NomadPort))
	if err != nil {
		t.Fatal(err)
	}
	return &lane{T: t, Machine: m, cluster: c, debian: debian}
}

// step is one thing that is done to the machine, and what must be so afterwards.
type step struct {
	name         string
	vital, short bool
	run          func(context.Context, *lane)
	// needs is what must be on the payload for it, besides what every step needs.
	needs part
}

// steps are done in this order on one machine. Nothing makes sense after a vital one
// failed; short ones are all that -short does.
var steps = []step{
	{"it has systemd, cgroup v2 and AppArmor", true, true, testBase, nil},
	{"it becomes a node", true, true, testNode, nil},
	{"every example runs", true, true, testExamples, nil},
	{"a container is confined", false, true, testConfined, nil},
	{"a task that is out of memory says so", false, false, testOOM, nil},
	{"a control group holds its task", false, false, testControlGroups, nil},
	{"statistics are what the kernel counts", false, false, testStatistics, nil},
	{"MPS daemons are in units of their own", false, true, testScopes, nil},
	{"nothing ends when Nomad's service is restarted", false, true, testRestartNomad, nil},
	{"nothing ends when the service takes its control group along", false, true, testRestartGroup, nil},
	{"nothing ends when containerd is restarted", false, true, testRestartContainerd, nil},
	{"a reboot brings the tasks back on their GPUs", false, false, testReboot, nil},
	{"both cgroup drivers of containerd will do", false, false, testCgroupDrivers, nil},
	{"nothing ends on an overloaded machine", false, false, testOverload, nil},
	{"nothing ends when everything of ours is killed", false, false, testKills, nil},
	{"what the plugins log without an agent is for people", false, false, testSystemLog, nil},
	{"a pulled plug brings them back too", false, false, testPlug, nil},
	{"packages install, take an upgrade, and are purged", false, false, testPackages, packages},
	{"the driver's own tests pass", false, false, testSuites, testBinaries},
}

// run runs a script that must succeed, and returns what it printed.
func (l *lane) run(ctx context.Context, script string) string {
	l.Helper()
	out, err := l.Exec(ctx, script)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

func (l *lane) diagnose(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	out, _ := l.Exec(ctx, "set +e +o pipefail; systemctl --no-pager --failed; systemd-cgls --no-pager | head -60; journalctl --no-pager -n 60 -u nomad -u containerd; nomad job status")
	l.Log(out)
}

// patience is how long Nomad may take for one thing on a slow machine.
const patience = 20 * time.Minute

// within gives a step's question to Nomad a deadline of its own.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, patience)
}

// eventually waits for a condition that nothing announces.
func (l *lane) eventually(ctx context.Context, what string, condition func() (bool, string)) {
	l.Helper()
	ctx, cancel := within(ctx)
	defer cancel()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		ok, now := condition()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.Fatalf("gave up waiting until %s; now: %s", what, now)
		}
	}
}

// nodeReady waits until Nomad may place work on the machine.
func (l *lane) nodeReady(ctx context.Context) {
	l.Helper()
	l.eventually(ctx, "the node is ready", func() (bool, string) {
		nodes, _, err := l.cluster.API.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
		if err != nil || len(nodes) != 1 {
			return false, fmt.Sprintf("%d nodes, %v", len(nodes), err)
		}
		node, _, err := l.cluster.API.Nodes().Info(nodes[0].ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return false, err.Error()
		}
		return cluster.Ready(node), node.Status
	})
}

// running waits until the job runs, and returns its allocation.
func (l *lane) running(ctx context.Context, job string) *api.Allocation {
	l.Helper()
	ctx, cancel := within(ctx)
	defer cancel()
	alloc, err := l.cluster.Running(ctx, job)
	if err != nil {
		l.Fatal(err)
	}
	return alloc
}

// submit runs a job written in HCL.
func (l *lane) submit(ctx context.Context, hcl string) {
	l.Helper()
	if _, err := l.cluster.Run(ctx, hcl); err != nil {
		l.Fatal(err)
	}
}
