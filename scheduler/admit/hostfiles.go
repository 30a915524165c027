// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// Nomad's client writes some files of a task as root, before it calls a driver, and follows
// links while it does: an author could have it overwrite a file of the host, and own that.
// Later releases may check these paths; 1.11.3 does not.

// CheckHostFiles refuses paths of a job, with GPUs or without, at which the client could be
// led out of the allocation. It follows no links in secrets, where the driver has them closed.
func (j *Job) CheckHostFiles() error {
	for i := range j.groups {
		if err := j.groups[i].checkHostFiles(); err != nil {
			return unreadable(err)
		}
	}
	return nil
}

func (g *group) checkHostFiles() error {
	var disk struct{ Sticky bool }
	if err := g.object.decode("EphemeralDisk", &disk); err != nil {
		return err
	}
	for _, t := range g.tasks {
		text, err := t.hostFile(disk.Sticky)
		if err != nil {
			return fmt.Errorf("group %q: task %q: %w", g.name, t.header.Name, err)
		}
		if text != "" {
			return &Refusal{Status: unprocessable, Text: fmt.Sprintf("group %q: task %q: %s", g.name, t.header.Name, text)}
		}
	}
	return nil
}

// hostFile says which path of a task could be one of the host.
func (t task) hostFile(sticky bool) (string, error) {
	identities, err := parseArray(t.object.get("Identities"))
	if err != nil {
		return "", err
	}
	for _, raw := range append(identities, t.object.get("Identity")) {
		if isNull(raw) {
			continue
		}
		identity, err := parseObject(raw)
		if err != nil {
			return "", err
		}
		var place string
		if err := identity.decode("Filepath", &place); err != nil {
			return "", err
		}
		if relative := strings.TrimLeft(place, "/"); place != "" && !(filepath.IsLocal(relative) && strings.HasPrefix(path.Clean(relative), "secrets/")) {
			return fmt.Sprintf("identity: filepath %.80q is not valid (a file in secrets/: elsewhere Nomad's client can be led to a file of the host)", place), nil
		}
	}
	var payload struct{ File string }
	if err := t.object.decode("DispatchPayload", &payload); err != nil {
		return "", err
	}
	if sticky && payload.File != "" {
		return fmt.Sprintf("dispatch_payload: file %.80q is not valid beside ephemeral_disk { sticky = true }: Nomad's client can be led to a file of the host by what an earlier allocation left", payload.File), nil
	}
	return "", nil
}
