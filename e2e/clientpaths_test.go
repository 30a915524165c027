// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// shell is an image with the programs that an attacker would bring.
const shell = "localhost/shell:1"

func shellImage(t *testing.T) []byte {
	t.Helper()
	files, err := testimage.HostPrograms(t.Context(), "sh", "mv", "rm", "ln", "ls", "sleep", "echo")
	if err != nil {
		t.Fatal(err)
	}
	files["/etc/passwd"] = testimage.File{Content: []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")}
	var archive bytes.Buffer
	if err := testimage.Build(&archive, shell, files, ispec.ImageConfig{Env: []string{"PATH=/bin"}}); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// Nomad's client makes an allocation's directories again when it is started, and writes
// tokens when it starts a task: as root, and following links.
func TestTheClientIsNotLedOutOfAnAllocation(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, cluster.Options{Images: [][]byte{shellImage(t)}, Nodes: []cluster.NodeOptions{{Topology: h100(t, 1), GPUs: sliced}}})
	node := c.Nodes[0]
	dir := node.Dir("of-the-host")
	file := filepath.Join(dir, "file")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`
for dir in data tmp logs; do
  mv /alloc/$dir /alloc/$dir.away; rm -rf /alloc/$dir; ln -sT %[1]s /alloc/$dir
done
rm -f /secrets/nomad_token; ln -s %[1]s/file /secrets/nomad_token
exec sleep 100000`, dir)
	if _, err := c.Run(ctx, fmt.Sprintf(`
job "attacker" {
  group "group" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "task" {
      driver      = "containerd"
      user        = "nobody"
      kill_signal = "SIGKILL"
      identity {
        file = true
      }
      config {
        image   = %q
        command = "sh"
        args    = ["/local/script"]
      }
      template {
        destination = "local/script"
        data        = <<EOT
%s
EOT
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}`, shell, script)); err != nil {
		t.Fatal(err)
	}
	alloc, err := c.Running(ctx, "attacker")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.WaitPID(ctx, 0, "sleep 100000"); err != nil {
		t.Fatal(err)
	}
	unharmed := func(after string) {
		t.Helper()
		var info unix.Stat_t
		if err := unix.Stat(dir, &info); err != nil || info.Mode&0o7777 != 0o750 || info.Uid != 0 {
			t.Errorf("after %s a directory of the host has mode %o and owner %d (%v)", after, info.Mode&0o7777, info.Uid, err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "the host's" {
			t.Errorf("after %s a file of the host is %q (%v)", after, text, err)
		}
		if err := unix.Stat(file, &info); err != nil || info.Uid != 0 {
			t.Errorf("after %s a file of the host belongs to %d (%v)", after, info.Uid, err)
		}
	}
	if err := node.KillClient(); err != nil {
		t.Fatal(err)
	}
	if err := node.StartClient(ctx); err != nil {
		t.Fatal(err)
	}
	unharmed("a restart of the client")
	// The client writes the token again where it finds the task, or when the task is started
	// again: either ends the task, whose link it does not follow.
	if _, err := c.WaitAlloc(ctx, alloc.ID, "to end", func(a *api.Allocation) bool {
		for _, event := range a.TaskStates["task"].Events {
			if strings.Contains(event.DisplayMessage, "failed to write nomad token") {
				return true
			}
		}
		_ = c.API.Allocations().Restart(alloc, "task", (&api.QueryOptions{}).WithContext(ctx)) // until the client has found the task
		return starts(a) > 1
	}); err != nil {
		t.Fatal(err)
	}
	unharmed("a restart of the task")
	if err := c.Stop(ctx, "attacker"); err != nil {
		t.Fatal(err)
	}
}
