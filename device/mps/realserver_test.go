// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
)

// originalServer has the branch's daemon start NVIDIA's own server, which ends without a
// GPU as it does on a machine whose GPU or driver does not work.
func (v variant) originalServer(t *testing.T) *bench {
	t.Helper()
	v.program(t) // or skip
	t.Setenv("PATH", strings.TrimPrefix(os.Getenv("PATH"), filepath.Join(standInDir, "bin")+":"))
	b := newBenchWith(t, v, false)
	b.Close()
	b.libraries = v.driver()
	b.start()
	return b
}

// All that keeps a server from starting on a first day ends here: it is no fatal error of
// a task's program, and no limit that is not as set.
func TestServerThatCannotStartAccusesNobody(t *testing.T) {
	for _, v := range variants {
		if !v.original {
			continue
		}
		t.Run(v.String(), func(t *testing.T) {
			b := v.originalServer(t)
			b.Want([]Spec{b.spec()})
			const ends, why = "its server does not start: ", "no CUDA-capable device is detected"
			s := b.until("the reason is known", func(s Status) bool { return s.Settled })
			// A program that waits for the server has the daemon start one after another.
			program := exec.Command("/proc/self/exe", cuda.ProbeCommand)
			program.Env = []string{"LD_LIBRARY_PATH=" + v.driver(), "CUDA_VISIBLE_DEVICES=" + device,
				"CUDA_MPS_PIPE_DIRECTORY=" + s.PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + s.LogDir}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = program.Process.Kill(), program.Wait() }()
			for ended := 0; ended < 5; {
				if s := b.Status(device); s.Ready || s.Server != "" || s.Culprit != 0 || !strings.HasPrefix(s.Reason, ends) {
					t.Fatalf("status is %+v", s)
				}
				text, err := os.ReadFile(filepath.Join(s.LogDir, "control.log"))
				if err != nil {
					t.Fatal(err)
				}
				ended = strings.Count(string(text), "exited with status")
			}
			b.until("it says what the server logged", func(s Status) bool { return s.Reason == ends+why })
		})
	}
}

func TestServerWithoutTheDriversLibrarySaysSo(t *testing.T) {
	b := variant{branch: "555", original: true, memory: true, multiUser: true}.originalServer(t)
	b.Close()
	b.libraries = ""
	b.start()
	b.Want([]Spec{b.spec()})
	s := b.until("the reason is known", func(s Status) bool { return s.Settled })
	if s.Server != "" || s.Reason != "its server does not start: it exited with status 1 and logged no reason" {
		t.Errorf("status is %+v", s)
	}
}
