// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// step is a moment of a plugin's life: before or after the daemon has carried out its nth
// command.
type step struct {
	command int
	when    string
}

// steps are those at which a plugin is killed: it adopts a daemon with four commands, makes a
// task's namespace with four, and asks how all is with four. A few are drawn, or all are taken
// with NOMAD_GPU_FULL.
func steps() (all []step) {
	for n := range 16 {
		all = append(all, step{n + 1, "before"}, step{n + 1, "after"})
	}
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		return all
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:5]
}

// Wherever a plugin is killed, the next one gives the program of a task its namespace, with
// its limits, and no program another's; all goes with the task.
func TestThePluginIsKilledAtEachStep(t *testing.T) {
	withV3(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		b.Close()
		dir, path := group(t, "step-"+b.branch)
		name := gpu.MPSTenantNamespace(path)
		plugin := func() *exec.Cmd {
			cmd := exec.Command("/proc/self/exe", superviseCommand, b.dir, b.program, fmt.Sprint(b.spec().MemoryMiB), path)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			return cmd
		}
		var killed []step
		for _, at := range steps() {
			b.behave(fmt.Sprintf("kill-asker %d %s", at.command, at.when))
			first := plugin()
			early := make(chan string, 1)
			go func() { early <- b.runIn(s, dir).whereIfConnected() }()
			_ = first.Wait()
			killed = append(killed, at)
			b.behave()
			second := plugin()
			if got := <-early; got != "" && got != name {
				t.Errorf("%+v: a program is in %q", at, got)
			}
			p := b.runIn(s, dir)
			if a, c, m := p.ask("where"), p.ask("sms"), p.ask("alloc 1025"); a != name || c != "66" || m == "ok" {
				t.Errorf("%+v: %s: it is in %q with %s multiprocessors, and gets memory: %s", at, p.said(), a, c, m)
			}
			b.endIn(dir)
			b.untilNamespaces("default")
			if all, err := mpsctl.PlacesOf(s.ControlDir).All(); err != nil || len(all) > 0 {
				t.Errorf("%+v: places are left: %v, %v", at, all, err)
			}
			if left, err := os.ReadDir(asksDir(s.ControlDir)); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), ".") }) {
				t.Errorf("%+v: questions are left: %v, %v", at, left, err)
			}
			_, _ = second.Process.Kill(), second.Wait()
		}
		b.start()
		b.wantReady()
		b.oneOfEach()
		t.Logf("killed at %v", killed)
	})
}

// whereIfConnected is a program's namespace, "" for one that was refused or has lost its server.
func (p *tenantProgram) whereIfConnected() string {
	if !strings.HasPrefix(p.said(), "connected") {
		return ""
	}
	where := p.ask("where")
	if strings.HasPrefix(where, "error") {
		return ""
	}
	return where
}

// endIn kills all programs in a control group.
func (b *bench) endIn(group string) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		if err != nil || len(text) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("programs stay in %s: %s", group, text)
		}
		for _, pid := range strings.Fields(string(text)) {
			_ = exec.Command("kill", "-KILL", pid).Run()
		}
	}
}

// As many tasks as a server has clients: each is in its namespace, and all go.
func TestFortyEightTasksHaveTheirNamespaces(t *testing.T) {
	t.Parallel()
	const tasks = 48
	b := newBenchWith(t, third[1], false)
	_, root := group(t, "many")
	b.Close()
	b.tenant = tenantIn(root)
	b.start()
	s := b.wantReady()
	programs := map[string]*tenantProgram{}
	started := make(chan func(), tasks)
	for n := range tasks {
		dir, path := group(t, fmt.Sprintf("many/%d", n))
		go func() {
			p := b.runIn(s, dir)
			started <- func() { programs[path] = p }
		}()
	}
	for range tasks {
		(<-started)()
	}
	for path, p := range programs {
		if where := p.ask("where"); where != gpu.MPSTenantNamespace(path) {
			t.Errorf("%s: the program of %s is in %q", p.said(), path, where)
		}
	}
	if all, err := b.v3().Programs(t.Context(), gpu.MPSServer); err != nil || len(all) != tasks {
		t.Errorf("the server has %d programs, %v", len(all), err)
	}
	for _, p := range programs {
		p.end()
	}
	b.untilNamespaces("default")
}
