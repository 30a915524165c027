// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

func TestAClientOfAnotherUser(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	if _, err := os.Stat("/usr/bin/setpriv"); err != nil {
		unavailable(t, "%v", err)
	}
	start(t, g.UUID, s, limitTo(1024), "hold", "64").held(t)
	other := startAs(t, g.UUID, s, &syscall.Credential{Uid: 65534, Gid: 65534}, limitTo(1024), "hold", "64")
	said := make(chan string, 1)
	go func() {
		if other.lines.Scan() {
			said <- other.lines.Text()
		}
		close(said)
	}()
	select {
	case line := <-said:
		figure(t, "beside a client of root, one of user 65534 says %q", line)
	case <-time.After(20 * time.Second):
		figure(t, "beside a client of root, one of user 65534 waits")
		if s.MultiUser {
			t.Error("the plugin says that this server takes clients of every user")
		}
	}
}

// A task of the containerd driver has a pipe directory of its own, with the socket for
// clients alone.
func TestAClientWithOneSocketOnly(t *testing.T) {
	g := idle(t)
	s := daemon(t, g.UUID)
	own := t.TempDir()
	if err := os.Chmod(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.PipeDir, "control"), filepath.Join(own, "control")); err != nil {
		t.Fatal(err)
	}
	s.PipeDir = own
	c := start(t, g.UUID, s, limitTo(1024), "hold", "2048")
	holds, _, _ := c.held(t)
	figure(t, "with the socket control alone a client gets %d MiB of 1024", holds)
	if holds > 1024 {
		t.Errorf("it holds %d MiB", holds)
	}
	figure(t, "NVML: %s", shown(g.UUID, c.cmd.Process.Pid))
}

// Memory and clients are told by process IDs: which, of a client in a container's
// namespaces.
func TestAClientInNamespaces(t *testing.T) {
	g := idle(t)
	d := supervised(t, g.UUID)
	for _, s := range []mps.Status{{}, d.status} {
		c := startIn(t, g.UUID, s, syscall.CLONE_NEWPID|syscall.CLONE_NEWNS|syscall.CLONE_NEWIPC|syscall.CLONE_NEWUTS, nil, limitTo(1024), "hold", "128")
		c.held(t)
		figure(t, "under MPS: %v; process %d in namespaces of its own: %s", s.PipeDir != "", c.cmd.Process.Pid, shown(g.UUID, c.cmd.Process.Pid))
		if servers, err := d.control.Servers(t.Context()); err == nil && s.PipeDir != "" {
			for _, server := range servers {
				clients, err := d.control.Clients(t.Context(), server)
				figure(t, "the clients of server %d: %v, %v; its command line: %q", server, clients, err, commandLine(server))
				if len(clients) > 0 && !slices.Contains(clients, c.cmd.Process.Pid) {
					t.Errorf("the server does not know process %d", c.cmd.Process.Pid)
				}
			}
		}
		c.in.Close()
		c.outcome()
	}
}

// commandLine is how a process was started, its arguments between spaces.
func commandLine(pid int) string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return strings.ReplaceAll(strings.TrimSuffix(string(text), "\x00"), "\x00", " ")
}
