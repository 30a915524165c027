// SPDX-License-Identifier: MPL-2.0

package device

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/procs"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// A plugin that is left of an agent ends when the next one begins, and one whose agent lives
// does not.
func TestOnePluginWorksOnAStateDir(t *testing.T) {
	dir, self := t.TempDir(), found(t, os.Getpid())
	earlier := exec.Command("sleep", "1000")
	if err := earlier.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- earlier.Wait() }()
	t.Cleanup(func() { _ = earlier.Process.Kill() })
	write := func(text string) {
		t.Helper()
		if err := statedir.WriteFile(dir+"/device-plugin.json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	its := encodeClaim(t, found(t, earlier.Process.Pid))
	gone := encodeClaim(t, procs.Process{PID: self.PID, Start: self.Start + 1})
	take := func() error { return takeOver(hclog.NewNullLogger(), dir, self) }

	write("{")
	if err := take(); err != nil {
		t.Fatal(err)
	}
	write(`{"version":1,"plugin":` + encodeClaim(t, procs.Process{PID: earlier.Process.Pid, Start: 1}) + `,"agent":` + gone + `}`)
	if err := take(); err != nil {
		t.Fatal(err)
	}
	write(`{"version":1,"plugin":` + its + `,"agent":` + encodeClaim(t, self) + `}`)
	if err := take(); err == nil || !strings.Contains(err.Error(), "a folder of this Nomad client's own") {
		t.Errorf("beside the plugin of another agent: %v", err)
	}
	select {
	case <-ended:
		t.Fatal("another process was killed")
	default:
	}
	write(`{"version":1,"plugin":` + its + `,"agent":` + gone + `}`)
	if err := take(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := take(); err != nil { // its own claim
		t.Fatal(err)
	}
}

// found is a process that runs.
func found(t *testing.T, pid int) procs.Process {
	t.Helper()
	p, err := procs.Find(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func encodeClaim(t *testing.T, c procs.Process) string {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
