// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
	"github.com/nomad-gpu/nomad-gpu/internal/documents"
	"github.com/nomad-gpu/nomad-gpu/internal/testca"
)

// TestFirstHour is an operator who has a machine with Nomad as its own package sets it up,
// packages of this product, and the guide to a first shared GPU: every command that the
// guide shows is run as it stands there.
func TestFirstHour(t *testing.T) {
	if *releases == "" || *selected != "" || testing.Short() {
		t.Skip("takes a quarter of an hour: make vm-packages")
	}
	if reason := missing(); reason != "" {
		t.Skip(reason)
	}
	for _, debian := range strings.Split(*releases, ",") {
		t.Run("debian "+debian, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			l := boot(ctx, t, debian, []part{packages})
			l.run(ctx, emptyMachine)
			newcomer := &newcomer{lane: l}
			defer func() { // also when a step ends the test
				t.Logf("what the operator did:\n%s", newcomer.told.String())
				if t.Failed() {
					out, _ := l.Exec(context.WithoutCancel(ctx), "nomad job allocs -json first | jq '.[].TaskStates'")
					t.Log(out)
					l.diagnose(ctx)
				}
			}()
			newcomer.firstGPU(ctx)
			newcomer.upgrades(ctx)
			newcomer.keepsKeys(ctx)
			newcomer.brokenMachines(ctx)
			began := time.Now()
			l.purges(ctx, []string{"first"}, "nomad-gpu-plugins", "nomad-gpu-scheduler")
			fmt.Fprintf(&newcomer.told, "    the job stopped, and the package purged: nothing of it is left, after %s\n", time.Since(began).Round(time.Second))
		})
	}
}

// emptyMachine makes a machine as HashiCorp's package leaves it, with two simulated GPUs
// and the image that stands for the guide's.
const emptyMachine = `
mkdir -p /etc/nomad.d /opt/nomad/data /root/first
ln -sf /opt/gpu/bin/nomad /usr/bin/nomad
cat >/etc/nomad.d/nomad.hcl <<'EOF'
data_dir  = "/opt/nomad/data"
bind_addr = "0.0.0.0"
disable_update_check = true
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled           = true
  servers           = ["127.0.0.1"]
  network_interface = "lo"
  cpu_total_compute = 20000
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
EOF
cat >/etc/systemd/system/nomad.service <<'EOF'
` + nomadUnit + `
EOF
cat >/root/two-gpus.hcl <<'EOF'
machine "vm" {}
gpu {
  model = "H100"
  count = 2
}
EOF
systemctl daemon-reload
systemctl enable --now nomad
ctr -n nomad-gpu images import /opt/gpu/images/probe.tar`

// newcomer types what the guide says.
type newcomer struct {
	*lane
	commands int
	told     strings.Builder
}

// types runs a command, and notes what it took. Nomad is asked again while its agent, or
// what it is asked for, is not there yet, as a person would.
func (n *newcomer) types(ctx context.Context, command string) (out string) {
	n.Helper()
	began, script := time.Now(), "cd /root/first\n"+command
	if strings.HasPrefix(command, "nomad ") {
		n.eventually(ctx, command+" succeeds", func() (bool, string) {
			var err error
			out, err = n.Exec(ctx, script)
			return err == nil, out
		})
	} else {
		out = n.run(ctx, script)
	}
	n.commands++
	fmt.Fprintf(&n.told, "%2d. %-90s %s\n", n.commands, firstLine(command), time.Since(began).Round(100*time.Millisecond))
	return out
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// firstGPU follows docs/guides/first-gpu.md.
func (n *newcomer) firstGPU(ctx context.Context) {
	n.Helper()
	began := time.Now()
	n.writes(ctx)
	for _, command := range n.guide() {
		out := n.types(ctx, command)
		if strings.Contains(command, "node status") && !strings.Contains(out, "nvidia/slice") {
			n.Fatalf("%s prints\n%s", command, out)
		}
	}
	alloc := n.running(ctx, "first")
	fmt.Fprintf(&n.told, "    %d commands, and %s until both tasks share a GPU\n", n.commands, time.Since(began).Round(time.Second))
	used := map[string]bool{}
	for _, dev := range alloc.AllocatedResources.Tasks["sample"].Devices {
		used[dev.Name] = true
	}
	if all := slices.Sorted(maps.Keys(used)); len(all) != 1 {
		n.Errorf("the task has slices of %v", all)
	}
	if out := n.types(ctx, "nomad alloc status -stats "+alloc.ID[:8]); !strings.Contains(out, "nvidia/slice") {
		n.Errorf("alloc status shows no slices:\n%s", out)
	}
	if report := n.consults(ctx, "the machine as it is now"); report.Worst() == doctor.Failed {
		n.Error("the doctor finds a machine ill on which all went well")
	}
}

// upgrades installs two later releases under the tasks.
func (n *newcomer) upgrades(ctx context.Context) {
	n.Helper()
	for _, version := range []string{nextRelease, lastRelease} {
		before := n.pids(ctx)
		n.types(ctx, installPackages(version))
		n.types(ctx, "systemctl restart nomad")
		n.nodeReady(ctx)
		n.running(ctx, "first")
		if after := n.pids(ctx); len(before) == 0 || !maps.Equal(before, after) {
			n.Errorf("before the upgrade to %s there were %v,\nafter it  there are %v", version, before, after)
		}
		if installed := strings.TrimSpace(n.run(ctx, "dpkg-query -W -f '${Version}' nomad-gpu-plugins")); installed != version {
			n.Errorf("after the upgrade to %s there is %s", version, installed)
		}
	}
}

// keepsKeys runs the service with a TLS key that only root may read.
func (n *newcomer) keepsKeys(ctx context.Context) {
	n.Helper()
	authority := testca.New(n)
	cert, key := authority.Sign("localhost")
	script := "mkdir -p /etc/systemd/system/nomad-gpu-scheduler.service.d && cp /usr/share/doc/nomad-gpu-scheduler/credentials.conf /etc/systemd/system/nomad-gpu-scheduler.service.d/\n"
	for name, path := range map[string]string{"cert.pem": cert, "key.pem": key, "ca.pem": authority.CAFile()} {
		text, err := os.ReadFile(path)
		if err != nil {
			n.Fatal(err)
		}
		script += "cat >/etc/nomad-gpu/" + name + " <<'EOF'\n" + string(text) + "EOF\n"
	}
	began := time.Now()
	n.run(ctx, script+`chmod 600 /etc/nomad-gpu/key.pem
cat >>/etc/nomad-gpu/scheduler.hcl <<'EOF'
listen {
  cert_file = "/run/credentials/nomad-gpu-scheduler.service/cert.pem"
  key_file  = "/run/credentials/nomad-gpu-scheduler.service/key.pem"
}
EOF
systemctl daemon-reload
systemctl enable --now nomad-gpu-scheduler`)
	n.eventually(ctx, "the service answers over TLS", func() (bool, string) {
		out, err := n.Exec(ctx, "nomad-gpu-scheduler status -address https://localhost:4656 -ca-cert /etc/nomad-gpu/ca.pem || journalctl -u nomad-gpu-scheduler -n 5")
		return err == nil && strings.Contains(out, "H100"), out
	})
	fmt.Fprintf(&n.told, "    the service answers over TLS with a key of mode 0600, after %s\n", time.Since(began).Round(time.Second))
	n.run(ctx, "rm -r /etc/systemd/system/nomad-gpu-scheduler.service.d /etc/nomad-gpu/*.pem")
}

// guide is what the guide's blocks say to type. What needs hardware, an image from a
// registry or an allocation's ID is left out or stands in other words.
func (n *newcomer) guide() []string {
	var commands []string
	for _, block := range documents.Fences(n, root, "docs/guides/first-gpu.md") {
		if block.Language != "console" {
			continue
		}
		for line := range strings.Lines(block.Text) {
			command, typed := strings.CutPrefix(line, "$ ")
			command, _, _ = strings.Cut(command, " #")
			command = strings.TrimSpace(command)
			if !typed || command == "nvidia-smi" || strings.Contains(command, "ALLOC") || strings.HasPrefix(command, "make ") {
				continue
			}
			if strings.HasSuffix(command, " inventory") {
				command += " /etc/nomad.d" // where the simulated GPUs are
			}
			commands = append(commands, packagePath.ReplaceAllString(command, "${1}/opt/gpu/packages/${2}_"+firstRelease+"_*.deb </dev/null"))
		}
	}
	if len(commands) < 6 {
		n.Fatalf("the guide says only %q", commands)
	}
	return commands
}

// packagePath is how documents name a package that was downloaded.
var packagePath = regexp.MustCompile(`(apt-get install )\./([a-z-]+)_\*\.deb`)

// writes puts the guide's files where it says, with simulated GPUs instead of real ones
// and an image that is there.
func (n *newcomer) writes(ctx context.Context) {
	n.Helper()
	config, job := "", ""
	for _, block := range documents.Fences(n, root, "docs/guides/first-gpu.md") {
		switch {
		case block.Language != "hcl":
		case strings.Contains(block.Text, "plugin_dir"):
			config = strings.Replace(block.Text, "  config {\n", "  config {\n"+simulated, 1)
		case strings.HasPrefix(block.Text, `job "first"`):
			job = guideImage.ReplaceAllString(block.Text, "image = \"localhost/gpuprobe:1\"\n")
			job = strings.Replace(job, "memory = 4096", "memory = 64", 1)
		}
	}
	if !strings.Contains(config, "simulation") || !strings.Contains(job, "gpuprobe") {
		n.Fatalf("the guide's files are not what they were:\n%s\n%s", config, job)
	}
	n.run(ctx, "cat >/etc/nomad.d/gpu.hcl <<'EOF'\n"+config+"\nEOF\ncat >/root/first/first.nomad.hcl <<'EOF'\n"+job+"\nEOF")
}

// guideImage is the image of the guide's job with its command.
var guideImage = regexp.MustCompile(`image +=(?s:.*?)args .*\n`)

// simulated is the block of docs/install.md for machines without a GPU.
const simulated = `    simulation {
      topology = "/root/two-gpus.hcl"
      dir      = "/var/lib/nomad-gpu-simulation"
    }
    mps {
      control = "/opt/gpu/bin/nvidia-cuda-mps-control"
    }
`

// consults asks the doctor, and notes what is not well.
func (n *newcomer) consults(ctx context.Context, machine string) *doctor.Report {
	n.Helper()
	out := n.run(ctx, "nomad-gpu-doctor check -json || test $? = 1")
	var report doctor.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		n.Fatalf("the doctor says %q: %v", out, err)
	}
	fmt.Fprintf(&n.told, "    %s:\n", machine)
	well := 0
	for _, f := range report.Findings {
		if f.Status == doctor.OK {
			well++
			continue
		}
		fmt.Fprintf(&n.told, "      %-8s %s, %s: %s\n               -> %s\n", f.Status, f.Area, f.Check, f.Detail, f.Action)
	}
	fmt.Fprintf(&n.told, "      ok       %d checks\n", well)
	return &report
}

// brokenMachines breaks the machine in three ways, and mends it again.
func (n *newcomer) brokenMachines(ctx context.Context) {
	for _, broken := range []struct {
		name, how, mend string
		notWell         []string // checks
	}{
		{"containerd is stopped and the CNI plugins are gone",
			"systemctl stop containerd; mv /usr/lib/cni /usr/lib/cni.away",
			"mv /usr/lib/cni.away /usr/lib/cni; systemctl start containerd",
			[]string{"containerd", "CNI plugins"}},
		{"the GPUs have no driver",
			"cp /etc/nomad.d/gpu.hcl /root/gpu.hcl; sed -i '/simulation {/,/}/d' /etc/nomad.d/gpu.hcl; systemctl restart nomad",
			"cp /root/gpu.hcl /etc/nomad.d/gpu.hcl; systemctl restart nomad",
			[]string{"driver"}},
		{"MPS's control program is missing and a plugin is gone",
			"sed -i 's|/opt/gpu/bin/nvidia-cuda-mps-control|/opt/nvidia-cuda-mps-control|' /etc/nomad.d/gpu.hcl; mv /opt/nomad/plugins/nomad-driver-containerd /root; systemctl restart nomad",
			"cp /root/gpu.hcl /etc/nomad.d/gpu.hcl; mv /root/nomad-driver-containerd /opt/nomad/plugins; systemctl restart nomad",
			[]string{"nomad-driver-containerd", "MPS"}},
	} {
		n.run(ctx, broken.how)
		n.eventually(ctx, "Nomad's agent answers", func() (bool, string) {
			out, err := n.Exec(ctx, "nomad node status -self -short")
			return err == nil, out
		})
		report := n.consults(ctx, broken.name)
		if report.Worst() != doctor.Failed {
			n.Errorf("%s, and no check fails", broken.name)
		}
		for _, check := range broken.notWell {
			if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
				return f.Check == check && f.Status != doctor.OK && f.Action != ""
			}) {
				n.Errorf("%s: %s is well to the doctor", broken.name, check)
			}
		}
		n.run(ctx, broken.mend)
		n.nodeReady(ctx)
	}
	if report := n.consults(ctx, "the machine after it was mended"); report.Worst() == doctor.Failed {
		n.Error("the doctor finds the mended machine ill")
	}
}
