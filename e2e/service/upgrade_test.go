// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// installation is a folder of programs that can be replaced one by one, as an operator
// does.
type installation struct {
	dir, former, present string
	cluster              *cluster.Cluster
	replica              *replica
}

const deviceProgram, driverProgram, serviceProgram = "nomad-device-gpu", "nomad-driver-containerd", "nomad-gpu-scheduler"

// put replaces a program, in one step, so that none is ever half there.
func (i *installation) put(t *testing.T, from, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(i.dir, name)
	if err := os.WriteFile(path+".new", text, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// linkTools shows what simulated machines are made of, but for what a former release does
// not know.
func (i *installation) linkTools(t *testing.T) {
	t.Helper()
	from, to := filepath.Join(root, "bin", "e2e"), filepath.Join(i.dir, "e2e")
	tools, err := os.ReadDir(from)
	if err == nil {
		err = os.Mkdir(to, 0o755)
	}
	for _, tool := range tools {
		if err == nil && tool.Name() != "libdcmi.so" {
			err = os.Symlink(filepath.Join(from, tool.Name()), filepath.Join(to, tool.Name()))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// replace puts a program of another release in its place and restarts what runs it.
func (i *installation) replace(ctx context.Context, t *testing.T, from, name string) {
	t.Helper()
	i.put(t, from, name)
	if name == serviceProgram {
		i.replica.kill(syscall.SIGTERM)
		i.serve(ctx, t)
		return
	}
	n := i.cluster.Nodes[0]
	if err := n.KillClient(); err != nil {
		t.Fatal(err)
	}
	// A client that is stopped ends its plugins. One that is killed leaves them, and the
	// next one would take the former driver's process up again.
	for _, kill := range []func() error{n.KillDevicePlugin, n.KillDriverPlugin} {
		if err := kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.StartClient(ctx); err != nil {
		t.Fatal(err)
	}
}

func (i *installation) serve(ctx context.Context, t *testing.T) {
	t.Helper()
	i.replica = serveWith(ctx, t, i.cluster, launch{program: filepath.Join(i.dir, serviceProgram), nomad: i.cluster.URL, config: oneGPU})
}

// orders are the orders in which three programs can be replaced.
func orders() [][]string {
	a, b, c := deviceProgram, driverProgram, serviceProgram
	return [][]string{{a, b, c}, {a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}}
}

// installFormer installs the former programs, of the folder NOMAD_GPU_FORMER, on a machine whose MPS
// is a branch's.
func installFormer(t *testing.T, limit time.Duration, branch string) (context.Context, *installation) {
	t.Helper()
	former := os.Getenv("NOMAD_GPU_FORMER")
	if former == "" {
		t.Skip("make test-upgrade builds the programs of a former release")
	}
	i := &installation{dir: t.TempDir(), former: former, present: filepath.Join(root, "bin")}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	for _, name := range []string{deviceProgram, driverProgram, serviceProgram} {
		i.put(t, i.former, name)
	}
	i.linkTools(t)
	c, err := cluster.Start(ctx, cluster.Options{Bin: i.dir, Progress: t.Logf, Nodes: []cluster.NodeOptions{
		{Topology: filepath.Join(root, "e2e", "topology", "t4.hcl"), GPUs: "mode = \"slice\"\nslice_memory = \"1GiB\"", MPSBranch: branch}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	i.cluster = c
	i.serve(ctx, t)
	return ctx, i
}

// TestUpgradeOfMPS replaces plugins that know no MPS v3 on a machine whose driver has it, and
// back: a GPU with a task keeps its daemon, one without gets that of the release.
func TestUpgradeOfMPS(t *testing.T) {
	ctx, i := installFormer(t, 10*time.Minute, "620")
	c := i.cluster
	node := c.Nodes[0]
	// until waits for the protocol of a GPU's daemon, or of all, which a former release does not
	// tell.
	until := func(uuid string, protocol int) (one gpu.MPSState) {
		t.Helper()
		for {
			dir, err := node.State()
			if err != nil {
				t.Fatal(err)
			}
			all, err := dir.GPUs()
			is := err == nil && len(all) > 0
			for _, s := range all {
				if uuid == "" || s.UUID == uuid {
					is = is && s.MPS != nil && s.MPS.Ready && max(s.MPS.Protocol, 2) == protocol
					if s.MPS != nil {
						one = *s.MPS
					}
				}
			}
			if is {
				return one
			}
			if ctx.Err() != nil {
				t.Fatalf("the GPUs are %+v, %v, and their protocol not %d", all, err, protocol)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	until("", 2)
	admitted(ctx, t, i.replica, job{id: "lasting", meta: map[string]string{"gpu": "3G"}, image: cluster.Image})
	alloc := runs(ctx, t, c.API, "lasting", 1)[0].ID
	dir, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	leases, err := dir.Leases()
	if err != nil || len(leases) != 1 {
		t.Fatalf("leases are %+v, %v", leases, err)
	}
	held := leases[0].Holdings[0].UUID
	before := until(held, 2)
	for _, name := range []string{deviceProgram, driverProgram} {
		i.replace(ctx, t, i.present, name)
	}
	if now := until(held, 2); now.Generation != before.Generation {
		t.Errorf("the daemon of a GPU with a task was %+v and is %+v", before, now)
	}
	if live := runs(ctx, t, c.API, "lasting", 1); live[0].ID != alloc {
		t.Errorf("alloc %s became %s", alloc, live[0].ID)
	}
	if err := c.Stop(ctx, "lasting"); err != nil {
		t.Fatal(err)
	}
	until("", 3)
	admitted(ctx, t, i.replica, job{id: "third", meta: map[string]string{"gpu": "3G"}, image: cluster.Image})
	runs(ctx, t, c.API, "third", 1)
	if err := c.Stop(ctx, "third"); err != nil {
		t.Fatal(err)
	}
	// No former release can speak to a daemon of v3.
	node.Configure(func(o *cluster.NodeOptions) { o.MPS = `protocol = "2"` })
	i.replace(ctx, t, i.present, deviceProgram)
	until("", 2)
	i.replace(ctx, t, i.former, driverProgram)
	node.Configure(func(o *cluster.NodeOptions) { o.MPS = "" }) // with it the present plugin would start v3 again
	i.replace(ctx, t, i.former, deviceProgram)
	until("", 2)
	admitted(ctx, t, i.replica, job{id: "back", meta: map[string]string{"gpu": "3G"}, image: cluster.Image})
	runs(ctx, t, c.API, "back", 1)
}

// TestUpgrade replaces the programs of a former release by the present ones, and back,
// in every order, while tasks run. NOMAD_GPU_FORMER is the folder of the former programs;
// make test-upgrade builds them.
func TestUpgrade(t *testing.T) {
	ctx, i := installFormer(t, 50*time.Minute, "")
	c := i.cluster
	admitted(ctx, t, i.replica, job{id: "lasting", meta: map[string]string{"gpu": "3G"}, image: cluster.Image})
	alloc := runs(ctx, t, c.API, "lasting", 1)[0].ID
	processes := pids(t, c)
	for n, order := range orders() {
		for _, to := range []string{i.present, i.former} {
			for _, name := range order {
				what := fmt.Sprintf("%s of %s", name, versionOf(t, filepath.Join(to, name)))
				i.replace(ctx, t, to, name)
				if live := runs(ctx, t, c.API, "lasting", 1); live[0].ID != alloc || !slices.Equal(pids(t, c), processes) {
					t.Fatalf("order %d, %s: alloc %s with processes %v became %s with %v", n, what, alloc, processes, live[0].ID, pids(t, c))
				}
				id := fmt.Sprintf("order-%d-%s", n, strings.ReplaceAll(what, " ", "-"))
				admitted(ctx, t, i.replica, job{id: id, meta: map[string]string{"gpu": "2G"}, image: cluster.Image})
				runs(ctx, t, c.API, id, 1)
				doubleBooked(ctx, t, c.API)
				if err := c.Stop(ctx, id); err != nil {
					t.Fatal(err)
				}
				t.Logf("order %d: %s", n, what)
			}
			attribute(ctx, t, c.Nodes[0], versionOf(t, filepath.Join(to, driverProgram)))
		}
	}
}

// pids are the processes of tasks.
func pids(t *testing.T, c *cluster.Cluster) []int {
	t.Helper()
	found, err := c.Nodes[0].PIDs("/bin/gpuprobe")
	if err != nil || len(found) == 0 {
		t.Fatalf("the processes of tasks: %v, %v", found, err)
	}
	slices.Sort(found)
	return found
}

func versionOf(t *testing.T, program string) string {
	t.Helper()
	line, err := exec.Command(program, "version").Output()
	fields := strings.Fields(string(line))
	if err != nil || len(fields) < 2 {
		t.Fatalf("%s says %q, %v", program, line, err)
	}
	return fields[1]
}

// attribute waits until the driver that Nomad knows is of a version.
func attribute(ctx context.Context, t *testing.T, n *cluster.Node, version string) {
	t.Helper()
	until(ctx, t, "have the driver of "+version, time.Minute, func() (bool, string) {
		node, _, err := n.API.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return false, err.Error()
		}
		return node.Attributes["driver.containerd.version"] == version, node.Attributes["driver.containerd.version"]
	})
}
