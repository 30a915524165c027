// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Lister lists the processes on a device.
type Lister interface {
	Processes(owner, uuid string) ([]hardware.Process, error)
}

// Users says, for a GPU and each partition of it, what keeps the GPU from being offered in
// another way: a process, or that the driver does not tell. A display server keeps nothing:
// it has no share that could change, and never ends. server reports whether a process
// belongs to an MPS daemon, which makes room by itself.
func Users(o Lister, server func(pid int) bool, g hardware.GPU) map[string]string {
	users := map[string]string{}
	look := func(uuid string) {
		processes, err := o.Processes(g.UUID, uuid)
		if err != nil {
			users[uuid] = "the driver to tell who is on it"
			return
		}
		for _, p := range processes {
			if !p.Graphics && !server(p.PID) {
				users[uuid] = ProgramText(p.PID) + " to end"
				return
			}
		}
	}
	look(g.UUID)
	for _, i := range g.Partitions {
		look(i.UUID)
	}
	return users
}

// ProgramText names a process for people, with its program: "process 4711 (Xorg)".
func ProgramText(pid int) string {
	if name := program(pid); name != "" {
		return fmt.Sprintf("process %d (%s)", pid, name)
	}
	return fmt.Sprintf("process %d", pid)
}

// program is a process's name as the kernel has it, in printable characters; empty for one
// that has ended.
func program(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, string(text))
}

// IsMPSServer reports whether a process is a server of MPS by its command line, for those
// who supervise none.
func IsMPSServer(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(text), "\x00")
	return filepath.Base(first) == "nvidia-cuda-mps-server"
}
