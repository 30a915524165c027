// SPDX-License-Identifier: MPL-2.0

package record

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Record is what the driver keeps with a container, apart from its labels.
type Record struct {
	Version   int       `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Lease     gpu.Lease `json:"lease"`
	// StopSignal is the image's own stop signal.
	StopSignal string `json:"stop_signal,omitempty"`
	TTY        bool   `json:"tty,omitempty"`
	// CPUSetCPUs are the cores that the author named.
	CPUSetCPUs string `json:"cpuset_cpus,omitempty"`
	// CeilingMilli is the most compute that the operator lets a task with a part of a GPU
	// use.
	CeilingMilli int64 `json:"ceiling_milli,omitempty"`
	// BelowNormal is the priority of the task's programs on its GPU.
	BelowNormal bool `json:"below_normal,omitempty"`
	// Network is what the driver told Nomad of the task's own network.
	Network *drivers.DriverNetwork `json:"network,omitempty"`
}

// Version is that of the records that this release writes.
const Version = 1

// Encode cannot fail: a record has plain values, and times of this century.
func (r Record) Encode() []byte {
	text, _ := json.Marshal(r)
	return text
}

// Of reads the record of a container. An older release's is complete as it
// is; a newer one's fields that this release does not know are not needed here.
func Of(c *runtime.Container) (Record, error) {
	var r Record
	if err := json.Unmarshal(c.Record, &r); err != nil {
		return r, fmt.Errorf("read record of container %s: %w", c.ID, err)
	}
	return r, nil
}

// Cgroup is where the control group of a container is, and of one
// without a readable record where it would be that Nomad gave no place.
func Cgroup(namespace string, c *runtime.Container) string {
	if r, err := Of(c); err == nil {
		if path := cgroups.Of(r.Lease); path != "" {
			return path
		}
	}
	return cgroups.Path(namespace, c.ID, nil, cgroups.Unified())
}
