// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/leases"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Name is what jobs call the driver.
const Name = gpu.DriverName

// handleVersion is the version of the task handles that this release writes.
const handleVersion = 1

// Driver implements Nomad's task driver interface.
type Driver struct {
	*eventer.Eventer
	logger hclog.Logger
	ctx    context.Context
	cancel context.CancelFunc

	// mu guards environment.
	mu sync.RWMutex
	environment

	tasks  *taskStore
	starts *startBook
	leases leases.Book
	// partitions keeps changes of partitions and of the leases that name them together. A
	// partition's name is free for another the moment that it is removed.
	partitions sync.Mutex
	seats      seatBook
	selfView   selfView
	runc       runcCheck
	dataDir    dataDirCheck
	work       *work
	loops      sync.Once
	counts     counts

	// client is the process of Nomad's client that started this one.
	client int
	// used is set once Nomad has asked how the driver is.
	used atomic.Bool
	// steps are what a start does, in this order.
	steps []step
	// watcherPatience is how long a session of a command lasts without a heartbeat.
	watcherPatience time.Duration
	// savedEvery is how often at most Nomad is told that a task's work is on disk.
	savedEvery time.Duration
}

// environment is what SetConfig makes of the plugin's configuration.
type environment struct {
	settings config.Settings
	runtime  *runtime.Runtime
	state    *statedir.Dir
	compute  cpustats.Compute
}

var (
	_ drivers.DriverPlugin               = (*Driver)(nil)
	_ drivers.ExecTaskStreamingDriver    = (*Driver)(nil)
	_ drivers.ExecTaskStreamingRawDriver = (*Driver)(nil)
)

// use puts an environment in the place of the one before.
func (d *Driver) use(env environment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.runtime != nil {
		_ = d.runtime.Close()
	}
	d.environment = env
}

var errDisabled = errors.New("the containerd driver is disabled in the plugin config")

// configured returns what SetConfig made, or an error when there is none.
func (d *Driver) configured() (environment, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.runtime == nil {
		return environment{}, errDisabled
	}
	return d.environment, nil
}

// emit tells a person who looks at the task what happens to it.
func (d *Driver) emit(cfg *drivers.TaskConfig, message string, annotations map[string]string) {
	err := d.EmitEvent(&drivers.TaskEvent{
		TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID,
		Timestamp: time.Now(), Message: message, Annotations: annotations,
	})
	if err != nil {
		d.logger.Debug("task event was not delivered", "task_id", cfg.ID, "error", err)
	}
}
