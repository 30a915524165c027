// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

type listed map[string][]hardware.Process

func (l listed) Processes(_, uuid string) ([]hardware.Process, error) {
	if l[uuid] == nil {
		return nil, errors.New("it does not tell")
	}
	return l[uuid], nil
}

func TestUsersOfAGPU(t *testing.T) {
	const server = 1
	self := os.Getpid()
	g := hardware.GPU{UUID: "GPU-1", Partitions: []hardware.Partition{{UUID: "MIG-1"}}}
	for name, tc := range map[string]struct {
		on   listed
		want map[string]string
	}{
		"nothing":                       {listed{"GPU-1": {}, "MIG-1": {}}, map[string]string{}},
		"a display server":              {listed{"GPU-1": {{PID: self, Graphics: true}}, "MIG-1": {}}, map[string]string{}},
		"an MPS server":                 {listed{"GPU-1": {{PID: server}}, "MIG-1": {}}, map[string]string{}},
		"a program beside both":         {listed{"GPU-1": {{PID: self, Graphics: true}, {PID: server}, {PID: self}}, "MIG-1": {}}, map[string]string{"GPU-1": fmt.Sprintf("process %d (occupancy.test) to end", self)}},
		"a program on a partition":      {listed{"GPU-1": {}, "MIG-1": {{PID: 1 << 30}}}, map[string]string{"MIG-1": "process 1073741824 to end"}},
		"a driver that does not answer": {listed{"MIG-1": {}}, map[string]string{"GPU-1": "the driver to tell who is on it"}},
	} {
		if got := Users(tc.on, func(pid int) bool { return pid == server }, g); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestMPSServersAreKnownByTheirCommandLine(t *testing.T) {
	if IsMPSServer(os.Getpid()) || IsMPSServer(1<<30) {
		t.Error("a test, or nothing at all, is an MPS server")
	}
}
