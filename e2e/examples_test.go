// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func TestExamplesRun(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "examples", "*.nomad.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for name, containerd := range map[string]string{"Debian's containerd": "", "the newest containerd": filepath.Join(root, "bin", "e2e", "containerd")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, c := startWith(t, cluster.Options{
				Containerd: containerd,
				Nodes:      []cluster.NodeOptions{cluster.MachineOfExamples(root)},
			})
			for _, file := range files {
				job := strings.TrimSuffix(filepath.Base(file), ".nomad.hcl")
				if _, err := c.RunFile(ctx, file); err != nil {
					t.Fatal(err)
				}
				alloc, err := c.Running(ctx, job)
				if err != nil {
					t.Fatal(err)
				}
				r, err := c.Report(ctx, alloc, alloc.Job.TaskGroups[0].Tasks[0].Name)
				if err != nil {
					t.Fatal(err)
				}
				if want := cluster.GPUsOfExamples[job]; len(r.Opens()) != want {
					t.Errorf("%s opens GPUs %v, want %d", job, r.Opens(), want)
				}
				if job == "two-gpus" { // whole-gpu needs one of the two that are whole
					checkBooking(t, ctx, c)
					if err := c.Stop(ctx, job); err != nil {
						t.Fatal(err)
					}
				}
			}
			checkBooking(t, ctx, c)
		})
	}
}

// ofFrameworks are lines of examples that fit their images only: the probe's image has no
// such commands, and its program tries every device, which takes root.
var ofFrameworks = regexp.MustCompile(`(?m)^ +(?:image|command|args|user) += .*\n`)

// The examples of frameworks are planned and run as they stand, in a small image that says
// which GPUs they would have.
func TestExamplesOfFrameworksRun(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "examples", "frameworks", "*.nomad.hcl"))
	if err != nil || len(files) != 7 {
		t.Fatalf("examples are %v, %v", files, err)
	}
	ctx, c := startWith(t, cluster.Options{Nodes: []cluster.NodeOptions{cluster.MachineOfExamples(root)}})
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		job := ofFrameworks.ReplaceAllString(string(text), "")
		job = strings.Replace(job, "config {\n", "config {\nimage = \"localhost/gpuprobe:1\"\n", 1)
		for size, small := range map[string]string{`( cpu +=) \d+`: "$1 100", `( memory +=) \d+`: "$1 64", `( size +=) \d+`: "$1 300"} {
			job = regexp.MustCompile(size).ReplaceAllString(job, small)
		}
		parsed, err := c.API.Jobs().ParseHCL(job, true)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		plan, _, err := c.API.Jobs().Plan(parsed, false, nil)
		if err != nil || len(plan.FailedTGAllocs) > 0 {
			t.Fatalf("%s: %v, %+v", file, err, plan)
		}
		if _, err := c.Run(ctx, job); err != nil {
			t.Fatal(err)
		}
		alloc, err := c.Running(ctx, *parsed.ID)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Report(ctx, alloc, parsed.TaskGroups[0].Tasks[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if *parsed.ID == "ddp" {
			want = 2
		}
		if len(r.Opens()) != want {
			t.Errorf("%s opens GPUs %v, want %d", *parsed.ID, r.Opens(), want)
		}
	}
	checkBooking(t, ctx, c)
}
