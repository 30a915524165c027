// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// notHere are commands of guides, by how they begin, that a test cannot run, and why.
var notHere = map[string]string{
	"apt-get install ./nomad-gpu-plugins_*.deb":     "e2e/vm installs the packages",
	"/opt/nomad/plugins/nomad-device-gpu inventory": "runs with the other name of the same program",
	"systemctl restart nomad":                       "simulated machines have no systemd; e2e/vm has",
	"systemctl kill -s HUP nomad-gpu-scheduler":     "the service starts with the file; TestReload sends the signal",
	"nvidia-smi": "needs NVIDIA's driver",
}

// guide is a document whose commands are run in order, in a folder of its own on the
// first machine of a cluster.
type guide struct {
	document string
	dir      string            // on the machine
	names    map[string]string // what stands in the document, and what it is here
	env      []string          // what the document exports
	files    *strings.Replacer // what stands in its files, and what it is here; may be nil
	before   map[string]func() // what has to be so before a command, by its beginning
	ran      int
}

// A guide's jobs run another image here, on machines with less CPU and memory.
var (
	image = regexp.MustCompile(`(?m)^(\s*)image( *)= "[^"]*"(\n\s*(?:command|args) .*)*`)
	host  = regexp.MustCompile(`(?m)^(\s*(?:cpu|memory) *= )\d+`)
)

// follow writes the files that a guide shows and runs its commands.
func (g *guide) follow(ctx context.Context, t *testing.T, n *cluster.Node) {
	t.Helper()
	for _, block := range documents.Fences(t, root, g.document) {
		switch block.Language {
		case "hcl":
			g.file(t, n, block.Text)
		case "console":
			for _, line := range strings.Split(block.Text, "\n") {
				if command, found := strings.CutPrefix(line, "$ "); found {
					g.command(ctx, t, n, strings.TrimSpace(regexp.MustCompile(` {2,}#.*`).ReplaceAllString(command, "")))
				}
			}
		}
	}
	if g.ran == 0 {
		t.Errorf("%s has no command", g.document)
	}
}

var jobName = regexp.MustCompile(`^job "([^"]+)"`)

// file writes a job to the file that the guide's commands name. Configurations are in
// place already: the cluster and the service started with them.
func (g *guide) file(t *testing.T, n *cluster.Node, text string) {
	t.Helper()
	name := jobName.FindStringSubmatch(text)
	if name == nil {
		return
	}
	text = image.ReplaceAllString(text, `${1}image${2}= "`+cluster.Image+`"`)
	text = host.ReplaceAllString(text, "${1}64")
	if g.files != nil {
		text = g.files.Replace(text)
	}
	write(t, n.Path(filepath.Join(g.dir, name[1]+".nomad.hcl")), text)
}

// command runs one line on the machine. It has to succeed.
func (g *guide) command(ctx context.Context, t *testing.T, n *cluster.Node, line string) {
	t.Helper()
	for beginning, why := range notHere {
		if strings.HasPrefix(line, beginning) {
			t.Logf("%s: %s: not run: %s", g.document, line, why)
			return
		}
	}
	for beginning, be := range g.before {
		if strings.HasPrefix(line, beginning) {
			be()
			delete(g.before, beginning)
		}
	}
	line = replacer(g.names).Replace(line)
	if exported, found := strings.CutPrefix(line, "export "); found {
		g.env = append(g.env, exported)
		return
	}
	bin := filepath.Join(root, "bin")
	script := "set -e -o pipefail; cd " + g.dir + "; export PATH=" + bin + ":" + filepath.Join(bin, "e2e") + ":$PATH NOMAD_CLI_NO_COLOR=1"
	for _, exported := range g.env {
		script += "; export " + exported
	}
	out, err := n.Command(ctx, nil, "bash", "-c", script+"; "+line)
	if err != nil {
		t.Errorf("%s: %s: %v", g.document, line, err)
	}
	t.Logf("$ %s\n%s", line, out)
	g.ran++
}

// replacer puts in names all at once: a name that is put in may have another one in it.
func replacer(names map[string]string) *strings.Replacer {
	var pairs []string
	for old, now := range names {
		pairs = append(pairs, old, now)
	}
	return strings.NewReplacer(pairs...)
}

// on prepares a guide's folder on a machine.
func on(t *testing.T, n *cluster.Node, document string, names map[string]string, env ...string) *guide {
	t.Helper()
	g := &guide{document: document, dir: n.Dir("guide"), names: names, env: env}
	if err := os.MkdirAll(n.Path(g.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	return g
}

// configuration is the first HCL block of a document that is said to be a file.
func configuration(t *testing.T, document, path string) string {
	t.Helper()
	for _, block := range documents.Fences(t, root, document) {
		if block.Language == "hcl" && strings.HasPrefix(block.Text, "# "+path+"\n") {
			return block.Text
		}
	}
	t.Fatalf("%s has no %s", document, path)
	return ""
}

// TestGuideTeams follows the guide to quotas, on a machine of eight GPUs.
func TestGuideTeams(t *testing.T) {
	t.Parallel()
	const document = "docs/guides/teams.md"
	ctx, c := startNodes(t, cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "dgx-a100.hcl")})
	r := serve(ctx, t, c, configuration(t, document, "/etc/nomad-gpu/scheduler.hcl"))
	until(ctx, t, "plan a first job", time.Minute, func() (bool, string) {
		first := job{id: "first", meta: map[string]string{"gpu": "1"}}
		_, _, err := r.API.Jobs().Plan(first.api(), false, (&api.WriteOptions{}).WithContext(ctx))
		return err == nil, fmt.Sprint(err)
	})
	g := on(t, c.Nodes[0], document, map[string]string{
		"http://gpu.example:4656": r.URL, "/etc/nomad-gpu/scheduler.hcl": r.config,
	}, "NOMAD_ADDR="+c.URL)
	g.follow(ctx, t, c.Nodes[0])
	runsIn(ctx, t, c.API, "vision", "detect", 6)
}

// TestGuidesOfNodes follows the guides to a first shared GPU and to maintenance, one after
// the other, as one operator would.
func TestGuidesOfNodes(t *testing.T) {
	t.Parallel()
	ctx, c := startNodes(t, cluster.NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "dgx-h100.hcl"), GPUs: `mode = "slice"`})
	r := serve(ctx, t, c, "")
	n := c.Nodes[0]
	names := map[string]string{"/opt/nomad/plugins/": "", "/etc/nomad.d": n.Dir("agent.hcl"), "gpu-7": n.Name}
	g := on(t, n, "docs/guides/first-gpu.md", names, "NOMAD_ADDR="+n.URL)
	names["ALLOC"] = "$(nomad job allocs -t '{{ (index . 0).ID }}' first)"
	g.follow(ctx, t, n)
	runsIn(ctx, t, c.API, "default", "first", 2)

	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	names["GPU-…"] = "-data-dir " + n.Dir("gpu") + " GPU-70b662a0"
	on(t, n, "docs/guides/maintenance.md", names, "NOMAD_ADDR="+n.URL, "NOMAD_GPU_ADDR="+r.URL).follow(ctx, t, n)
}

// TestGuideCPUFallback follows the guide to jobs that run on the CPU when no GPU comes.
// Another job holds the queue's only GPU until the guide tries again.
func TestGuideCPUFallback(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "queue \"small\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}")
	admits(ctx, t, r)
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "first", 1)
	onCPU := func(want int) func() (bool, string) {
		return func() (bool, string) {
			now := pictureOf(ctx, t, r).OnCPU
			return len(now) == want, fmt.Sprintf("on the CPU are %+v", now)
		}
	}
	g := on(t, c.Nodes[0], "docs/guides/cpu-fallback.md", map[string]string{"http://gpu.example:4656": r.URL})
	g.files = strings.NewReplacer(`"10m"`, `"1s"`)
	g.before = map[string]func(){
		"nomad-gpu-scheduler status": func() { until(ctx, t, "fall back", time.Minute, onCPU(1)) },
		"nomad job inspect": func() {
			runs(ctx, t, c.API, "score", 1)
			g.before["nomad-gpu-scheduler run"] = func() {
				if err := c.Stop(ctx, "first"); err != nil {
					t.Fatal(err)
				}
			}
		},
	}
	g.follow(ctx, t, c.Nodes[0])
	until(ctx, t, "run on the GPU", 2*time.Minute, onCPU(0))
	runs(ctx, t, c.API, "score", 1)
}

// TestEveryGuideIsFollowed: a guide with commands has a test above.
func TestEveryGuideIsFollowed(t *testing.T) {
	t.Parallel()
	followed := map[string]bool{"docs/guides/teams.md": true, "docs/guides/first-gpu.md": true, "docs/guides/maintenance.md": true, "docs/guides/cpu-fallback.md": true}
	for _, document := range documents.All(t, root) {
		if !strings.HasPrefix(document, "docs/guides/") || followed[document] {
			continue
		}
		for _, block := range documents.Fences(t, root, document) {
			if block.Language == "console" {
				t.Errorf("%s:%d: no test runs these commands", document, block.Line)
			}
		}
	}
}
