// SPDX-License-Identifier: MPL-2.0

package record

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// Labels of our containers. They are how containers are found, so their names
// never change between releases.
const (
	LabelNode   = "io.nomad-gpu.node"
	LabelAlloc  = "io.nomad-gpu.alloc"
	LabelTask   = "io.nomad-gpu.task"
	LabelTaskID = "io.nomad-gpu.task-id"
	// LabelManaged is set where the image is the driver's to remove.
	LabelManaged = "io.nomad-gpu.image-managed"

	labelJob      = "io.nomad-gpu.job"
	labelExitCode = "io.nomad-gpu.exit-code"
	labelExitAt   = "io.nomad-gpu.exited-at"
	labelExitOOM  = "io.nomad-gpu.exit-oom"
)

// reservedLabels start the labels upon which programs of the host act: ours,
// containerd, and the tools of those who use the same containerd. nerdctl removes, as
// root, the directory that a container's label names.
var reservedLabels = []string{"io.nomad-gpu.", "containerd.io/", "io.containerd.", "io.cri-containerd", "nerdctl/", "io.kubernetes.", "com.docker."}

// maxLabel is how many bytes containerd takes for a label's key and value.
const maxLabel = 4096

// IDs is the form of the IDs that NewID makes.
var IDs = regexp.MustCompile(`^[A-Za-z0-9]{1,24}-[A-Za-z0-9]{1,8}[a-z2-7]{10}$`)

// NewID names a container: the task's name and its allocation's short
// ID are in it for people. No two attempts to start a task share one, since
// containerd may still be busy with an attempt whose driver died. Containers are
// found by label, never by this name.
func NewID(cfg *drivers.TaskConfig) string {
	keep := func(s string, limit int) string {
		s = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
				return r
			}
			return -1
		}, s)
		return s[:min(len(s), limit)]
	}
	name := keep(cfg.Name, 24)
	if name == "" {
		name = "task"
	}
	return name + "-" + keep(cfg.AllocID, 8) + strings.ToLower(rand.Text()[:10])
}

// Labels are the author's labels and, above them, ours.
func Labels(cfg *drivers.TaskConfig, author map[string]string) (map[string]string, error) {
	labels := map[string]string{}
	for key, value := range author {
		if slices.ContainsFunc(reservedLabels, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			return nil, fmt.Errorf("labels: %q is reserved", key)
		}
		if key == "" || len(key)+len(value) > maxLabel {
			return nil, fmt.Errorf("labels: %.60q is empty or, with its value, longer than %d bytes", key, maxLabel)
		}
		labels[key] = value
	}
	for key, value := range map[string]string{
		LabelNode: cfg.NodeID, LabelAlloc: cfg.AllocID, LabelTask: cfg.Name, LabelTaskID: cfg.ID, labelJob: cfg.JobID,
	} {
		if len(key)+len(value) > maxLabel {
			return nil, fmt.Errorf("%s is longer than %d bytes", key, maxLabel)
		}
		labels[key] = value
	}
	return labels, nil
}
