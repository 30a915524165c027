package e2e

import (
	"path/filepath"
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
