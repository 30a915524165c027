// SPDX-License-Identifier: MPL-2.0

package device

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/procs"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Nomad's client ends the plugin of an earlier client, whose process it has written down. A
// client that dies before it has written leaves a plugin that no client ends: it would go on
// beside the next one, with the same daemons and files.

// claim says which plugin works on a state directory, and which agent started it.
type claim struct {
	Version int           `json:"version"`
	Plugin  procs.Process `json:"plugin"`
	Agent   procs.Process `json:"agent"`
}

// endPatience is how long a killed process may take to be gone.
const endPatience = 5 * time.Second

// takeOver makes this process the one that works on a state directory, and ends an earlier
// plugin there whose agent is gone.
func takeOver(log hclog.Logger, stateDir string, agent procs.Process) error {
	path := filepath.Join(stateDir, "device-plugin.json")
	self, err := procs.Find(os.Getpid())
	if err != nil {
		return err
	}
	var earlier claim
	if text, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(text, &earlier) // an unreadable claim claims nothing
	}
	if earlier.Plugin != self && earlier.Plugin.Alive() {
		if earlier.Agent.Alive() {
			return fmt.Errorf("state_dir: %q is not valid (a folder of this Nomad client's own: process %d, a device plugin of the agent with process %d, works in it)", stateDir, earlier.Plugin.PID, earlier.Agent.PID)
		}
		log.Warn("ending a device plugin whose agent is gone", "pid", earlier.Plugin.PID)
		if err := unix.Kill(earlier.Plugin.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("end device plugin %d, whose agent is gone: %w", earlier.Plugin.PID, err)
		}
		for deadline := time.Now().Add(endPatience); earlier.Plugin.Alive() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	text, err := json.Marshal(claim{Version: 1, Plugin: self, Agent: agent})
	if err != nil {
		return err
	}
	return statedir.WriteFile(path, text, 0o600)
}
