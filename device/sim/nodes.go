// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The numbers of the real driver's device nodes. Without the driver, opening a
// node that a container may open gives ENXIO, and one that it may not EPERM,
// which is all that a test of isolation needs.
const (
	majorNVIDIA  = 195
	minorControl = 255
	// majorUVM is assigned at run time on a real machine; this one is from the
	// range for local use.
	majorUVM = 240
)

// node is a device node and the path that a container sees it under.
type node struct {
	host, container string
	major, minor    uint32
}

func (m *Machine) commonNodes(dir string) []node {
	return []node{
		{filepath.Join(dir, "nvidiactl"), "/dev/nvidiactl", majorNVIDIA, minorControl},
		{filepath.Join(dir, "nvidia-uvm"), "/dev/nvidia-uvm", majorUVM, 0},
		{filepath.Join(dir, "nvidia-uvm-tools"), "/dev/nvidia-uvm-tools", majorUVM, 1},
	}
}

func (m *Machine) gpuNode(dir string, number int) node {
	name := fmt.Sprintf("nvidia%d", number)
	return node{filepath.Join(dir, name), "/dev/" + name, majorNVIDIA, uint32(number)}
}

// makeNodes makes the character devices in the simulator's folder.
func (m *Machine) makeNodes(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of simulated device nodes: %w", err)
	}
	all := m.commonNodes(dir)
	for _, g := range m.gpus {
		all = append(all, m.gpuNode(dir, g.number))
	}
	return mknods(all)
}

// mknods makes character devices that every user may open.
func mknods(all []node) error {
	for _, n := range all {
		err := unix.Mknod(n.host, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor)))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make device node %s: %w", n.host, err)
		}
		if err := os.Chmod(n.host, 0o666); err != nil {
			return fmt.Errorf("make device node %s: %w", n.host, err)
		}
	}
	return nil
}
