// SPDX-License-Identifier: MPL-2.0

package device

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Nomad's client ends the plugin of an earlier client, whose process it has written down. A
// client that dies before it has written leaves a plugin that no client ends: it would go on
// beside the next one, with the same daemons and files.

// claimant is a process, told from a later one with the same number by its start in clock
// ticks since boot.
type claimant struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// claim says which plugin works on a state directory, and which agent started it.
type claim struct {
	Version int      `json:"version"`
	Plugin  claimant `json:"plugin"`
	Agent   claimant `json:"agent"`
}

func claimantOf(pid int) claimant {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return claimant{}
	}
	stat, err := process.Stat()
	if err != nil || stat.State == "Z" || stat.State == "X" {
		return claimant{}
	}
	return claimant{PID: pid, Start: stat.Starttime}
}

func (c claimant) alive() bool { return c.PID > 0 && claimantOf(c.PID) == c }

// endPatience is how long a killed process may take to be gone.
const endPatience = 5 * time.Second

// takeOver makes this process the one that works on a state directory, and ends an earlier
// plugin there whose agent is gone.
func takeOver(log hclog.Logger, stateDir string, agent claimant) error {
	path, self := filepath.Join(stateDir, "device-plugin.json"), claimantOf(os.Getpid())
	var earlier claim
	if text, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(text, &earlier) // an unreadable claim claims nothing
	}
	if earlier.Plugin != self && earlier.Plugin.alive() {
		if earlier.Agent.alive() {
			return fmt.Errorf("state_dir: %q is not valid (a folder of this Nomad client's own: process %d, a device plugin of the agent with process %d, works in it)", stateDir, earlier.Plugin.PID, earlier.Agent.PID)
		}
		log.Warn("ending a device plugin whose agent is gone", "pid", earlier.Plugin.PID)
		if err := unix.Kill(earlier.Plugin.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("end device plugin %d, whose agent is gone: %w", earlier.Plugin.PID, err)
		}
		for deadline := time.Now().Add(endPatience); earlier.Plugin.alive() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	text, err := json.Marshal(claim{Version: 1, Plugin: self, Agent: agent})
	if err != nil {
		return err
	}
	return statedir.WriteFile(path, text, 0o600)
}
