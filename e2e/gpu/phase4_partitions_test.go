// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// bare is a control daemon as NVIDIA's guide starts one, without the plugin.
func bare(t *testing.T, uuid string, options ...string) (control mpsctl.Control, said string) {
	t.Helper()
	program, err := exec.LookPath(driver().Program("nvidia-cuda-mps-control"))
	if err != nil {
		unavailable(t, "the driver's MPS is not installed: %v", err)
	}
	dir := t.TempDir()
	env := []string{"CUDA_VISIBLE_DEVICES=" + uuid, "CUDA_MPS_LOG_DIRECTORY=" + dir, "LD_LIBRARY_PATH=" + libraryPath()}
	control = mpsctl.Control{Program: program, PipeDir: filepath.Join(dir, "pipe"), Timeout: 10 * time.Second, Env: env}
	if err := os.Mkdir(control.PipeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-d"}, options...)...)
	cmd.Env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+control.PipeDir)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = control.Ask(ctx, "quit -t 5")
		_, _ = control.Run(ctx, program, []string{"-q"}, "", nil) // as a daemon of MPS v3 is asked
	})
	return control, fmt.Sprintf("%q, %v", out.String(), err)
}

// Which options and commands this branch's control program has, and how it answers.
func TestTheControlProgram(t *testing.T) {
	g := idle(t)
	for _, options := range [][]string{{"-p", "3"}, {"-S"}, {"-multiuser-server"}, {"--multiuser-server"}, {"-M"}, {"-m"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			control, said := bare(t, g.UUID, options...)
			answer, err := control.Ask(t.Context(), "get_default_active_thread_percentage")
			figure(t, "the program says %s; asked for its threads: %q, %v", said, answer, err)
			if err != nil {
				return
			}
			_, _ = control.Ask(t.Context(), "start_server -uid 0")
			servers, err := control.Servers(t.Context())
			for _, server := range servers {
				figure(t, "its server %d: %q", server, commandLine(server))
			}
			if err != nil || len(servers) == 0 {
				figure(t, "no server: %v", err)
			}
		})
	}
	control, said := bare(t, g.UUID)
	figure(t, "the program says %s", said)
	began := time.Now()
	answer, err := control.Ask(t.Context(), "start_server -uid 0")
	figure(t, "start_server: %q, %v, after %s", answer, err, time.Since(began).Round(time.Millisecond))
	var last string
	for time.Since(began) < 15*time.Second && !strings.Contains(last, "ACTIVE") {
		words := ""
		servers, err := control.Servers(t.Context())
		for _, server := range servers {
			state, err := control.Ask(t.Context(), fmt.Sprintf("get_server_status %d", server))
			words += fmt.Sprintf("server %d: %q, %v; ", server, state, err)
		}
		if words += fmt.Sprint(err); words != last {
			figure(t, "%s after start_server: %s", time.Since(began).Round(time.Millisecond), words)
			last = words
		}
	}
	for _, command := range []string{
		"set_default_device_pinned_mem_limit 0 80896M", "get_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit 0 14848M", "get_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit 0 1500M", "get_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit 0 512M", "get_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit " + g.UUID + " 1024M", "get_default_device_pinned_mem_limit 0",
		"set_default_active_thread_percentage 33.3", "get_default_active_thread_percentage",
		"set_default_client_priority 1", "get_default_client_priority",
		"ps", "lspart", "get_device_client_list", "version", "help",
	} {
		answer, err := control.Ask(t.Context(), command)
		figure(t, "%s: %.400q, %v", command, answer, err)
	}
}

// How a server that cannot start shows itself: its device is not there.
func TestAServerThatCannotStart(t *testing.T) {
	idle(t)
	control, said := bare(t, "GPU-00000000-0000-0000-0000-000000000000")
	figure(t, "the program says %s", said)
	began, last := time.Now(), ""
	_, err := control.Ask(t.Context(), "start_server -uid 0")
	figure(t, "start_server: %v", err)
	for time.Since(began) < 4*time.Second {
		list, err := control.Ask(t.Context(), "get_server_list")
		words := fmt.Sprintf("list %q %v", list, err)
		for _, server := range strings.Fields(list) {
			state, err := control.Ask(t.Context(), "get_server_status "+server)
			words += fmt.Sprintf("; %s: %q %v", server, state, err)
		}
		if words != last {
			figure(t, "after %s: %s", time.Since(began).Round(time.Millisecond), words)
			last = words
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, name := range []string{"control.log", "server.log"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(control.PipeDir), name))
		figure(t, "%s: %v %.1500s", name, err, text)
	}
}
