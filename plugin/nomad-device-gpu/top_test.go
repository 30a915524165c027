// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal/pty"
)

// asProgram makes the test binary the program.
const asProgram = "NOMAD_GPU_TEST_AS_PROGRAM"

const h100 = "GPU-a969835c-a4f8-0c0c-665d-78e2a99ea69c"

// occupied is a configuration on a node on which a plugin and a driver have left what
// they leave while two tasks run.
func occupied(t *testing.T) string {
	t.Helper()
	path := configFile(t, mixed)
	bootID, err := statedir.BootID()
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(filepath.Join(filepath.Dir(path), "run"), bootID)
	if err != nil {
		t.Fatal(err)
	}
	hold := func(task string, slice int) gpu.Lease {
		return gpu.Lease{ID: gpu.LeaseID("0badcafe-0000", task), AllocID: "0badcafe-0000", Namespace: "default", Job: "train", Group: "g", Task: task, Phase: gpu.PhaseRunning,
			Holdings: []gpu.Holding{{UUID: h100, Mode: gpu.ModeShared, Slices: []int{slice}, Share: gpu.Share{MemoryMiB: 8192}}}}
	}
	greedy, hostile := hold("greedy", 0), hold("\x1b[2Jhostile", 1)
	err = errors.Join(state.WriteLease(greedy), state.WriteLease(hostile),
		state.WriteGPU(gpu.GPUState{UUID: h100, Faults: []gpu.Fault{{Code: "xid-79", Message: "lost", Action: "reset"}},
			MPS: &gpu.MPSState{Ready: true, Generation: 3, MaxClients: 48, LastEnd: "killed"}}),
		state.WriteUsage(gpu.Usage{Tasks: []gpu.TaskUsage{{LeaseID: greedy.ID, UUID: h100, MemoryMiB: 9216, Milli: 730, Processes: 2}}}),
		state.WriteSeats(gpu.Seats{UUID: h100, Seats: []gpu.Seat{{LeaseID: hostile.ID, State: gpu.SeatSuspended, Since: time.Now().Add(-time.Minute)}}}))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTopWithoutATerminalIsPrintedOnce(t *testing.T) {
	path := occupied(t)
	code, out, problems := run("top", path)
	if code != 0 || problems != "" || strings.Contains(out, "\x1b") {
		t.Fatalf("exit code %d, %q, %q", code, out, problems)
	}
	for _, want := range []string{
		"Tesla V100-SXM2-32GB", "0.3 of 32 GiB", "34°C", "0 of 31", // a free GPU
		"MIG-c6c0794a  3g.20gb", "2 of 4", "ready, 3 starts", "xid-79", h100,
		"default/train/greedy", "9 of 8 GiB", "73%", "0badcafe", "default/train/\uFFFD[2Jhostile", "- of 8 GiB", "suspended for 1m",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	code, out, _ = run("top", "-json", path)
	var v inventory.TopView
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
		t.Fatalf("exit code %d: %v: %s", code, err, out)
	}
	for _, d := range v.Devices {
		if d.UUID != h100 {
			continue
		}
		if d.HeldInstances != 2 || d.Instances != 4 || d.MPS == nil || d.MPS.MaxClients != 48 || len(d.Tasks) != 2 || d.Tasks[0].UsedMiB*d.Tasks[1].UsedMiB != -9216 || d.UsedMiB < 1 {
			t.Errorf("the H100 is %+v", d)
		}
	}
	if code, _, problems := run("top", "-interval", "1ms", path); code != command.ExitUsage || !strings.Contains(problems, "-interval 1ms is not valid") {
		t.Errorf("exit code %d, %q", code, problems)
	}
	if code, _, problems := run("top", "/nonexistent.hcl"); code != command.ExitError || problems == "" {
		t.Errorf("exit code %d, %q", code, problems)
	}
}

// A node without a plugin has tasks of none, and looking makes no state directory.
func TestTopLeavesNothing(t *testing.T) {
	path := configFile(t, mixed)
	if code, out, _ := run("top", path); code != 0 || !strings.Contains(out, "No task of the containerd driver") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "run")); err == nil {
		t.Error("looking made the plugin's state directory")
	}
}

func topOn(t *testing.T, env string, args ...string) *pty.Terminal {
	t.Helper()
	program := exec.Command("/proc/self/exe", append([]string{"top"}, args...)...)
	program.Env = append(os.Environ(), asProgram+"=1", "NO_COLOR=", "NOMAD_CLI_NO_COLOR=", "TERM=xterm", env)
	return pty.Start(t, program, 200, 40)
}

// On a terminal it is drawn until the user, or whoever ends it, has had enough; then the
// terminal is as it was.
func TestTopOnATerminal(t *testing.T) {
	path := occupied(t)
	for name, quit := range map[string]func(*pty.Terminal){
		"q": func(x *pty.Terminal) { x.Type("q") }, "Ctrl-C": func(x *pty.Terminal) { x.Type("\x03") },
		"SIGTERM": func(x *pty.Terminal) { x.Signal(syscall.SIGTERM) }, "SIGHUP": func(x *pty.Terminal) { x.Signal(syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			x := topOn(t, "A=b", "-interval", "100ms", path)
			x.Until("two frames", func(text string) bool { return strings.Count(text, "q quits") >= 2 })
			if modes := x.Modes(); modes.Lflag&(unix.ECHO|unix.ICANON) != 0 {
				t.Error("keys are shown while it runs")
			}
			quit(x)
			if code := x.Ended(); code != 0 {
				t.Errorf("exit code %d: %q", code, x.Text())
			}
			if modes := x.Modes(); modes.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != unix.ECHO|unix.ICANON|unix.ISIG || modes.Oflag&unix.OPOST == 0 {
				t.Errorf("the terminal is left as %+v", modes)
			}
			x.Until("the screen from before", func(text string) bool { return strings.HasSuffix(text, "\x1b[?25h\x1b[?1049l") })
			text := x.Text()
			if !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l") || strings.Contains(text, "\x1b[2Jhostile") {
				t.Errorf("the terminal was sent %q", text)
			}
			for _, colored := range []string{"\x1b[31mxid-79\x1b[0m", "\x1b[32mok\x1b[0m", "\x1b[31m9 of 8 GiB\x1b[0m"} {
				if !strings.Contains(text, colored) {
					t.Errorf("%q is missing in %q", colored, text)
				}
			}
		})
	}
}

func TestTopFollowsTheTerminalsSize(t *testing.T) {
	x := topOn(t, "A=b", "-interval", "1h", occupied(t))
	x.Until("a frame", func(text string) bool { return strings.Contains(text, "q quits") })
	x.Resize(20, 3)
	x.Until("a small frame", func(text string) bool { return strings.Contains(text, "more lines") })
	x.Type("q")
	x.Ended()
}

func TestTopHasNoColorsWhereTheyAreNotWanted(t *testing.T) {
	path := occupied(t)
	for env, args := range map[string][]string{"NO_COLOR=1": nil, "NOMAD_CLI_NO_COLOR=1": nil, "TERM=dumb": nil, "A=b": {"-no-color"}} {
		x := topOn(t, env, append(args, "-once", path)...)
		if code := x.Ended(); code != 0 {
			t.Errorf("%s %q: exit code %d", env, args, code)
		}
		x.Until("the tasks", func(text string) bool { return strings.Contains(text, "hostile") })
		if text := x.Text(); strings.Contains(text, "\x1b") {
			t.Errorf("%s %q: %q", env, args, text)
		}
	}
	x := topOn(t, "A=b", "-once", path)
	x.Until("colors", func(text string) bool { return strings.Contains(text, "\x1b[32mok\x1b[0m") })
	if strings.Contains(x.Text(), "1049h") {
		t.Error("-once takes the screen over")
	}
	x.Ended()
}
