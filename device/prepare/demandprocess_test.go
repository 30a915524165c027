// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// mortalProcess is a plugin that is a process, over a simulated GPU on disk: it makes a pass for
// each line that it reads, and tells what came of it.
type mortalProcess struct {
	model string
	cmd   *exec.Cmd
	asks  *json.Encoder
	tells *json.Decoder
}

// mortalLife is what such a process is told once; mortalPass each time, and mortalTold is its
// answer.
type (
	mortalLife struct {
		Dir, Model string
		Steps      int64
	}
	mortalPass struct {
		Now    time.Time
		Client plan.Client
	}
	mortalTold struct {
		Open []string
		Rest bool
	}
)

const mortalVariable = "NOMAD_GPU_MORTAL"

func (p *mortalProcess) start(m *mortal, steps int64) {
	m.t.Helper()
	p.end()
	p.cmd = exec.Command("/proc/self/exe", "-test.run", "^TestAMortalPlugin$")
	// Killed, it leaves its folders behind.
	p.cmd.Env = append(os.Environ(), mortalVariable+"=1", "TMPDIR="+m.t.TempDir())
	in, err := p.cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	p.asks, p.tells = json.NewEncoder(in), json.NewDecoder(out)
	if err == nil {
		err = p.asks.Encode(mortalLife{m.dir, p.model, steps})
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// end kills the process, if it runs.
func (p *mortalProcess) end() {
	if p.cmd != nil {
		_, _ = p.cmd.Process.Kill(), p.cmd.Wait()
	}
}

func (p *mortalProcess) pass(m *mortal) ([]string, bool) {
	m.t.Helper()
	var told mortalTold
	if p.asks.Encode(mortalPass{m.now, m.client}) != nil || p.tells.Decode(&told) != nil {
		m.killed.Store(true)
		if err := p.cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			m.t.Fatalf("the plugin ended by itself: %v", err)
		}
		p.cmd, told = nil, mortalTold{}
	}
	m.look()
	return told.Open, told.Rest
}

// look opens the simulated GPU as it is on disk now.
func (m *mortal) look() {
	m.t.Helper()
	m.backend.Close()
	machine, err := sim.New(m.topology, sim.Options{Dir: m.dir + "/sim", BootID: "boot"})
	if err != nil {
		m.t.Fatal(err)
	}
	m.machine, m.backend = machine, nvidia.New(machine, time.Minute)
}

// TestAMortalPlugin is such a process; among the tests it does nothing.
func TestAMortalPlugin(t *testing.T) {
	if os.Getenv(mortalVariable) == "" {
		return
	}
	asks, tells := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var life mortalLife
	if err := asks.Decode(&life); err != nil {
		t.Fatal(err)
	}
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"m\" {}\ngpu { model = \""+life.Model+"\" }"))
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{t: t, dir: life.Dir, topology: topology, dies: true}
	m.start(life.Steps)
	for {
		var next mortalPass
		if err := asks.Decode(&next); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		m.now, m.client = next.Now.Add(-6*time.Second), next.Client
		open, rest := m.pass()
		if err := tells.Encode(mortalTold{open, rest}); err != nil {
			t.Fatal(err)
		}
	}
}
