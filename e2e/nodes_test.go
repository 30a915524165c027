// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/crypto/bcrypt"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// login is that of the registry.
const loginUser, loginPassword = "ann", "s3cret-of-ann"

// privateRegistry runs Debian's docker-registry, which wants a login, and returns its address.
func privateRegistry(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("docker-registry is not installed (e2e/prepare tests does)")
	}
	address, dir := freeAddress(t), t.TempDir()
	hash, err := bcrypt.GenerateFromPassword([]byte(loginPassword), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: %s\nhttp:\n  addr: %s\nauth:\n  htpasswd:\n    realm: test\n    path: %s/htpasswd\n", dir, address, dir)
	for name, text := range map[string]string{"config.yml": config, "htpasswd": loginUser + ":" + string(hash) + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "serve", filepath.Join(dir, "config.yml"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	within(t.Context(), t, "the registry listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return address
}

// describeEvents is what an allocation's task was told.
func describeEvents(t *testing.T, ctx context.Context, c *cluster.Cluster, id string) string {
	t.Helper()
	alloc, err := c.Alloc(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, e := range alloc.TaskStates["task"].Events {
		text += e.DisplayMessage + "\n"
	}
	return text
}

// What docs/driver.md says of registries and logins, cores, volumes, networks and the collection of
// images, on a real Nomad.
func TestWhatNodesGiveTasks(t *testing.T) {
	t.Parallel()
	address := privateRegistry(t)
	operators := strings.Replace(address, "127.0.0.1", "localhost", 1) // another name of it
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced,
		Driver:   hostTools + fmt.Sprintf("gc {\n image_delay = \"1s\"\n period = \"1s\"\n}\nregistry {\n server_address = %q\n username = %q\n password = %q\n}\n", operators, loginUser, loginPassword),
		Networks: map[string]string{"inner": `{"cniVersion": "1.0.0", "name": "inner", "plugins": [{"type": "loopback"}]}`}})
	node := c.Nodes[0]
	ctr := func(args ...string) string {
		t.Helper()
		out, err := node.Command(ctx, nil, append([]string{"ctr", "-n", node.TaskCgroup()}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	image := address + "/team/app:1"
	ctr("images", "push", "--plain-http", "--user", loginUser+":"+loginPassword, image, cluster.Image)
	of := func(image string, j jobSpec) string {
		return strings.Replace(j.hcl(), fmt.Sprintf("%q", cluster.Image), fmt.Sprintf("%q", image), 1)
	}
	login := func(user, password, server string) string {
		return fmt.Sprintf("auth {\n username = %q\n password = %q\n server_address = %q\n}\n", user, password, server)
	}
	rows := []struct{ id, image, config, refused string }{
		{"login", image, login(loginUser, loginPassword, ""), ""},
		{"operators-login", operators + "/team/app:1", "", ""},
		{"no-login", image, "", "no login was sent"}, // although the image is there by now
		{"wrong-password", image, login(loginUser, "wr0ng-password", ""), "401 Unauthorized"},
		{"login-of-another", image, login(loginUser, loginPassword, "other.example"), "other.example"},
	}
	for _, row := range rows {
		if _, err := c.Run(ctx, of(row.image, jobSpec{id: row.id, config: row.config, group: noRestart})); err != nil {
			t.Fatal(err)
		}
		if row.refused == "" {
			if _, err := c.Running(ctx, row.id); err != nil {
				t.Fatal(err)
			}
		}
	}

	const mounted = `
    volume "v" {
      type      = "host"
      source    = "programs"
      read_only = true
    }
`
	for id, row := range map[string]struct {
		spec jobSpec
		want string
	}{
		"host-volume": {jobSpec{group: noRestart + mounted, task: "volume_mount {\n volume = \"v\"\n destination = \"/programs\"\n}\n",
			config: script("[ -x /programs/gpuprobe ] && ! touch /programs/x 2>/dev/null && echo read-only", "")}, "read-only"},
		"cni": {jobSpec{group: noRestart + "network {\n mode = \"cni/inner\"\n}\n",
			config: script("cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '", "")}, "lo"},
	} {
		row.spec.id = id
		if line, err := c.FirstLine(ctx, run(t, ctx, c, row.spec), "task"); err != nil || string(line) != row.want {
			t.Errorf("%s: a task finds %q, %v; want %q", id, line, err, row.want)
		}
	}

	// A task's reserved core goes to no other task, even to one that names it.
	cpus := func(alloc *api.Allocation) string {
		text, _ := os.ReadFile(filepath.Join(node.Dir("nomad"), "alloc", alloc.ID, "task", "local", "cpus")) // absent at first
		return strings.TrimSpace(string(text))
	}
	const tells = "while :; do grep Cpus_allowed_list /proc/self/status | cut -f2 > /local/cpus.new; mv /local/cpus.new /local/cpus; sleep 0.1; done"
	shares := run(t, ctx, c, jobSpec{id: "shares", config: script(tells, "cpuset_cpus = \"0-1\"\n"), group: noRestart})
	within(ctx, t, "a task has both cores", func() bool { return cpus(shares) == "0-1" })
	if _, err := c.Run(ctx, strings.Replace(jobSpec{id: "cores", config: script(tells, ""), group: noRestart}.hcl(), "cpu    = 100", "cores = 1", 1)); err != nil {
		t.Fatal(err)
	}
	cores, err := c.Running(ctx, "cores")
	if err != nil {
		t.Fatal(err)
	}
	var mine string
	within(ctx, t, "each has a core", func() bool {
		theirs := cpus(shares)
		mine = cpus(cores)
		return mine != theirs && (mine == "0" || mine == "1") && (theirs == "0" || theirs == "1")
	})
	register(t, ctx, c, jobSpec{id: "named", config: fmt.Sprintf("cpuset_cpus = %q", mine), group: noRestart})

	rows = append(rows, struct{ id, image, config, refused string }{id: "named", refused: "none of them is shared now"})
	for _, row := range rows {
		if row.refused == "" {
			continue
		}
		failed, err := c.WaitAllocs(ctx, row.id, "to fail", func(a *api.AllocationListStub) bool { return a.ClientStatus == api.AllocClientStatusFailed }, 1)
		if err != nil {
			t.Fatal(err)
		}
		if text := describeEvents(t, ctx, c, failed[0].ID); !strings.Contains(text, row.refused) || strings.Contains(text, loginPassword) || strings.Contains(text, "wr0ng") {
			t.Errorf("%s: its events say %s", row.id, text)
		}
	}

	// An image that the driver pulled goes when no task uses it, and what the operator imported stays.
	stop(t, ctx, c, "login", "operators-login")
	within(ctx, t, "the images that were pulled are gone", func() bool { return !strings.Contains(ctr("images", "ls", "-q"), "/team/app:1") })
	if left := ctr("images", "ls", "-q"); !strings.Contains(left, cluster.Image) {
		t.Errorf("the images are now\n%s", left)
	}
}
