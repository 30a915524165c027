package driver

import (
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

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
