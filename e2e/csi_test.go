// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

const csiVolume = `
    volume "data" {
      type            = "csi"
      source          = "data"
      attachment_mode = "file-system"
      access_mode     = "multi-node-multi-writer"
      read_only       = %t
    }
`

const csiMount = `
      volume_mount {
        volume      = "data"
        destination = "/data"
      }
`

// csiPrivileged is the refusal of a plugin that is not.
const csiPrivileged = "a CSI plugin must be privileged"

// A CSI node plugin is a task of this driver, and so are the tasks that use its volumes. Only a
// privileged task can be one.
func TestCSI(t *testing.T) {
	t.Parallel()
	program, err := testimage.BuildGo(t.Context(), t.TempDir(), "github.com/nomad-gpu/nomad-gpu/e2e/hostcsi")
	if err != nil {
		t.Fatal(err)
	}
	dir, volumes := filepath.Dir(program), t.TempDir()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced,
		Driver: fmt.Sprintf("allow_privileged = true\nvolumes {\n enabled = true\n allow_paths = [\"/usr\", %q, %q]\n}\n", dir, volumes)})
	node := c.Nodes[0]
	// As systemd has it.
	if _, err := node.Command(ctx, nil, "mount", "--make-rshared", "/"); err != nil {
		t.Fatal(err)
	}
	plugin := func(id, privileged string) jobSpec {
		return jobSpec{id: id, group: noRestart,
			config: privileged + fmt.Sprintf("entrypoint = [\"/plugin/hostcsi\"]\nmounts = [{ type = \"bind\", source = %q, target = \"/plugin\", options = [\"ro\"] }, { type = \"bind\", source = %q, target = \"/volumes\" }]\n", dir, volumes),
			task:   fmt.Sprintf("csi_plugin {\n id = %q\n type = \"node\"\n mount_dir = \"/csi\"\n}\n", id)}
	}
	register(t, ctx, c, plugin("plain", ""))
	if _, _, err := c.Settled(ctx, "plain"); err == nil || !strings.Contains(err.Error(), csiPrivileged) {
		t.Errorf("a CSI plugin that is not privileged: %v", err)
	}
	run(t, ctx, c, plugin("hostcsi", "privileged = true\n"))
	within(ctx, t, "the plugin is healthy", func() bool {
		p, _, err := c.API.CSIPlugins().Info("hostcsi", nil)
		return err == nil && p.NodesHealthy == 1
	})
	volume := &api.CSIVolume{ID: "data", Name: "data", ExternalID: "data", PluginID: "hostcsi", Namespace: "default",
		RequestedCapabilities: []*api.CSIVolumeCapability{{AccessMode: api.CSIVolumeAccessModeMultiNodeMultiWriter, AttachmentMode: api.CSIVolumeAttachmentModeFilesystem}}}
	if _, err := c.API.CSIVolumes().Register(volume, nil); err != nil {
		t.Fatal(err)
	}
	user := func(id, text string, readonly bool) *api.Allocation {
		t.Helper()
		return run(t, ctx, c, jobSpec{id: id, config: script(text, ""), group: noRestart + fmt.Sprintf(csiVolume, readonly), task: csiMount, devices: slicesOf(2)})
	}
	says := func(alloc *api.Allocation, want string) {
		t.Helper()
		if line, err := c.FirstLine(ctx, alloc, "task"); err != nil || string(line) != want {
			t.Errorf("%s prints %q, %v; want %q", alloc.JobID, line, err, want)
		}
	}
	says(user("writes", "echo kept >/data/file && echo written", false), "written")
	reader := user("reads", "echo more 2>/dev/null >>/data/file || cat /data/file", true)
	says(reader, "kept")
	if mounts := csiMounts(t, node); len(mounts) != 4 { // to be written and to be read, of the node and of an allocation
		t.Errorf("the host's mounts are %q", mounts)
	}
	// The volume stays while there is no plugin, and the next one takes it away.
	stop(t, ctx, c, "hostcsi")
	if out, err := c.Exec(ctx, reader, "task", "/usr/bin/cat", "/data/file"); err != nil || strings.TrimSpace(string(out)) != "kept" {
		t.Errorf("without the plugin a task reads %q, %v", out, err)
	}
	run(t, ctx, c, plugin("hostcsi", "privileged = true\n"))
	within(ctx, t, "the plugin is healthy again", func() bool {
		p, _, err := c.API.CSIPlugins().Info("hostcsi", nil)
		return err == nil && p.NodesHealthy == 1
	})
	says(user("again", "cat /data/file", false), "kept")
	stop(t, ctx, c, "writes", "reads", "again")
	within(ctx, t, "no volume is mounted on the host", func() bool { return len(csiMounts(t, node)) == 0 })
}

// csiMounts are the machine's mounts below its directories of CSI volumes.
func csiMounts(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	text, err := os.ReadFile(n.Path("/proc/1/mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.Contains(fields[4], "/csi/node/hostcsi/") {
			found = append(found, fields[4])
		}
	}
	return found
}
