package driver

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Labels of our containers. They are how containers are found, so their names
// never change between releases.
const (
	labelNode     = "io.nomad-gpu.node"
	labelAlloc    = "io.nomad-gpu.alloc"
	labelTask     = "io.nomad-gpu.task"
	labelTaskID   = "io.nomad-gpu.task-id"
	labelJob      = "io.nomad-gpu.job"
	labelManaged  = "io.nomad-gpu.image-managed"
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

// containerIDs is the form of the IDs that newContainerID makes.
var containerIDs = regexp.MustCompile(`^[A-Za-z0-9]{1,24}-[A-Za-z0-9]{1,8}[a-z2-7]{10}$`)

// newContainerID names a container: the task's name and its allocation's short
// ID are in it for people. No two attempts to start a task share one, since
// containerd may still be busy with an attempt whose driver died. Containers are
// found by label, never by this name.
func newContainerID(cfg *drivers.TaskConfig) string {
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

// containerLabels are the author's labels and, above them, ours.
func containerLabels(cfg *drivers.TaskConfig, author map[string]string) (map[string]string, error) {
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
		labelNode: cfg.NodeID, labelAlloc: cfg.AllocID, labelTask: cfg.Name, labelTaskID: cfg.ID, labelJob: cfg.JobID,
	} {
		if len(key)+len(value) > maxLabel {
			return nil, fmt.Errorf("%s is longer than %d bytes", key, maxLabel)
		}
		labels[key] = value
	}
	return labels, nil
}

// record is what the driver keeps with a container, apart from its labels.
type record struct {
	Version   int       `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Lease     gpu.Lease `json:"lease"`
	// Stop is the image's own stop signal.
	StopSignal string `json:"stop_signal,omitempty"`
	TTY        bool   `json:"tty,omitempty"`
	// CPUSetCPUs are the cores that the author named.
	CPUSetCPUs string `json:"cpuset_cpus,omitempty"`
	// CeilingMilli is the most compute that the operator lets a task with a part of a GPU
	// use.
	CeilingMilli int64 `json:"ceiling_milli,omitempty"`
	// Network is what the driver told Nomad of the task's own network.
	Network *drivers.DriverNetwork `json:"network,omitempty"`
}

const recordVersion = 1

// encode cannot fail: a record has plain values, and times of this century.
func (r record) encode() []byte {
	text, _ := json.Marshal(r)
	return text
}

// recordOf reads the record of a container. An older release's is complete as it
// is; a newer one's fields that this release does not know are not needed here.
func recordOf(c *runtime.Container) (record, error) {
	var r record
	if err := json.Unmarshal(c.Record, &r); err != nil {
		return r, fmt.Errorf("read record of container %s: %w", c.ID, err)
	}
	return r, nil
}

// cgroupOfContainer is where the control group of a container is, and of one
// without a readable record where it would be that Nomad gave no place.
func cgroupOfContainer(namespace string, c *runtime.Container) string {
	if r, err := recordOf(c); err == nil {
		if path := cgroups.Of(r.Lease); path != "" {
			return path
		}
	}
	return cgroups.Path(namespace, c.ID, nil, cgroups.Unified())
}
