// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// nvidiaControl is NVIDIA's MPS control program of a driver branch, where
// e2e/prepare could fetch it.
func nvidiaControl(t *testing.T, branch string) string {
	t.Helper()
	cache := os.Getenv("NOMAD_GPU_CACHE")
	if cache == "" {
		cache = "/var/cache/nomad-gpu"
	}
	path := filepath.Join(cache, "nvidia", branch, "usr/bin/nvidia-cuda-mps-control")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("NVIDIA's control program of branch %s is not there; e2e/prepare tests fetches it from Debian where it can: %v", branch, err)
	}
	return path
}

// standInServer builds a server for NVIDIA's daemons, whose own needs a GPU.
func standInServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	built := goProgram(t, "device/sim/nvidia-cuda-mps-control")
	server := filepath.Join(dir, "bin", "nvidia-cuda-mps-server")
	must.NoError(t, os.MkdirAll(filepath.Dir(server), 0o755))
	must.NoError(t, os.Link(built, server))
	return server
}

// startControl starts a daemon in a GPU's directories, with a server, and gives
// it limits.
func startControl(t *testing.T, n *node, program, server string, options ...string) (mpsctl.Control, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") // the path of a socket is short
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	own := filepath.Join(dir, "own")
	for _, sub := range []string{"pipe", "own", "log", "shm"} {
		must.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	startGate(t, filepath.Join(dir, "pipe"), own)
	n.publish(gpuA, func(s *gpu.GPUState) {
		s.MPS.PipeDir, s.MPS.LogDir, s.MPS.ShmDir = filepath.Join(dir, "pipe"), filepath.Join(dir, "log"), filepath.Join(dir, "shm")
		s.MPS.Control, s.MPS.ControlDir = program, own
	})
	c := mpsctl.Control{Program: program, PipeDir: own, Timeout: patience,
		Env: []string{"PATH=" + filepath.Dir(server) + ":" + os.Getenv("PATH"), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "log"), "CUDA_VISIBLE_DEVICES=" + gpuA}}
	_, err = c.Run(t.Context(), program, append([]string{"-d"}, options...), "", nil)
	must.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = c.Ask(ctx, "quit -t 1")
	})
	for _, command := range []string{"set_default_active_thread_percentage 50", "start_server -uid 0"} {
		_, err := c.Ask(t.Context(), command)
		must.NoError(t, err)
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		servers, err := c.Servers(t.Context())
		must.NoError(t, err)
		if len(servers) == 0 {
			continue
		}
		if answer, err := c.Ask(t.Context(), "get_active_thread_percentage "+itoa(servers[0])); err == nil && answer == "50.0" {
			return c, itoa(servers[0])
		}
	}
	t.Fatal("the server does not come")
	return c, ""
}

// startGate puts the device plugin's gate before a daemon.
func startGate(t *testing.T, pipe, daemon string) {
	t.Helper()
	cmd := exec.Command(goProgram(t, "e2e/mpsgate"), pipe, daemon)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		_, err := os.Stat(filepath.Join(pipe, "control"))
		return err
	}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
}

// bring copies a program of the host with its libraries into a task's directory,
// and returns how the task runs it.
func bring(t *testing.T, program, dir string) string {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	must.NoError(t, err)
	loader := ""
	for _, field := range strings.Fields(string(out)) {
		if !strings.HasPrefix(field, "/") {
			continue
		}
		text, err := os.ReadFile(field)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(field)), text, 0o755))
		if strings.HasPrefix(filepath.Base(field), "ld-linux") {
			loader = filepath.Base(field)
		}
	}
	text, err := os.ReadFile(program)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "mps"), text, 0o755))
	return "/local/" + loader + " --library-path /local /local/mps"
}

// mpsCommands are what a task tries with NVIDIA's own program; S is the server, C a
// client of a neighbor.
var mpsCommands = []string{
	"set_active_thread_percentage S 100", "set_device_pinned_mem_limit S 0 81920M", "terminate_client S C",
	"set_default_active_thread_percentage 100", "set_default_device_pinned_mem_limit 0 81920M", "set_default_client_priority 1",
	"start_server -uid 0", "start_server -uid 65534", "shutdown_server S", "shutdown_server S -f", "quit", "quit -t 1",
}

// A task with what clients get of MPS, and NVIDIA's own program, changes nothing of
// its neighbors, on every branch and as any user: not by commands, not as another
// kind of program, not by silence, and not by what it logs.
func TestGPUTaskWithTheControlProgramChangesNothingOfItsNeighbors(t *testing.T) {
	server := standInServer(t)
	for _, branch := range []string{"470", "535", "550", "555"} {
		for _, user := range []string{"0", "65534"} {
			t.Run(branch+" as user "+user, func(t *testing.T) {
				program := nvidiaControl(t, branch)
				withContainerd(t, func(t *testing.T, e *env) { attackDaemon(t, e, program, server, user) })
			})
		}
	}
}

func attackDaemon(t *testing.T, e *env, program, server, user string) {
	n := newNode(e)
	control, pid := startControl(t, n, program, server)
	tool := goProgram(t, "driver/testdata/mpsattack")
	neighbor := exec.Command(tool, "stay")
	neighbor.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(filepath.Dir(control.PipeDir), "pipe")}
	passed, err := neighbor.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, neighbor.Start())
	defer func() { _, _ = neighbor.Process.Kill(), neighbor.Wait() }()
	_, err = passed.Read(make([]byte, 64))
	must.NoError(t, err)
	client := itoa(neighbor.Process.Pid)
	must.NoError(t, os.WriteFile(filepath.Join(control.PipeDir, "behavior"), []byte("clients "+client+"\n"), 0o644))
	questions := []string{
		"get_server_list", "get_default_active_thread_percentage", "get_active_thread_percentage " + pid, "get_client_list " + pid,
		"get_default_device_pinned_mem_limit 0", "get_device_pinned_mem_limit " + pid + " 0", "get_default_client_priority",
	}
	answers := func() (all []string) {
		for _, question := range questions {
			answer, err := control.Value(t.Context(), question)
			if !errors.Is(err, mpsctl.ErrUnknown) {
				must.NoError(t, err)
			}
			all = append(all, question+": "+answer)
		}
		return all
	}
	before := answers()
	must.SliceContains(t, before, "get_client_list "+pid+": "+client)

	script := &bytes.Buffer{}
	cfg := e.task(defaultTaskConfig("sh", "/local/attack"), reserve(gpuA, 0), func(cfg *drivers.TaskConfig) { cfg.User = user })
	run := bring(t, program, cfg.TaskDir().LocalDir)
	must.NoError(t, exec.Command("cp", tool, cfg.TaskDir().LocalDir).Run())
	script.WriteString("/local/mpsattack client\n")
	names := strings.NewReplacer(" S", " "+pid, " C", " "+client)
	for _, command := range mpsCommands {
		script.WriteString("echo '" + names.Replace(command) + "' | " + run + "\n")
	}
	script.WriteString("/local/mpsattack kinds; /local/mpsattack log; /local/mpsattack silence & sleep 1; /local/mpsattack client\n")
	script.WriteString("find / -name 'control_privileged' -o -name 'nvidia-cuda-mps*' 2>/dev/null | grep -v ^/proc\necho over\n")
	must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "attack"), script.Bytes(), 0o755))
	e.start(cfg)
	e.wait(cfg.ID)
	out := e.logs(cfg, "stdout")
	if user == "0" {
		must.Eq(t, 2, strings.Count(out, "a CUDA program passes"), must.Sprint(out))
	} else { // the server takes one user at a time, and has the neighbor
		must.Eq(t, 2, strings.Count(out, "client fails: "), must.Sprint(out))
	}
	must.StrContains(t, out, "kind 3 is refused")
	must.StrContains(t, out, "over")
	must.StrNotContains(t, out, "/control_privileged")
	must.StrNotContains(t, out, "/nvidia-cuda-mps")
	must.Eq(t, before, answers())
	_, err = os.Stat(filepath.Join(control.PipeDir, "terminated"))
	must.ErrorIs(t, err, os.ErrNotExist)
}
