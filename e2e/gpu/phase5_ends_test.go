// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
)

// third is the part of the multiprocessors that lets clients in endless kernels run side by
// side: without it the first one leaves none to the others for minutes.
const third = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"

// What ends clients in a kernel, and what it does to the one beside them.
func TestTheEndOfAClientInAKernel(t *testing.T) {
	g := idle(t)
	for _, tc := range []struct {
		how       string
		clients   int
		work      string
		terminate bool
	}{
		{"terminate_client and SIGKILL", 1, "spin", true},
		{"terminate_client and SIGKILL of a task of two processes", 2, "spin", true},
		{"SIGKILL", 1, "spin", false},
		{"SIGSEGV", 1, "crash", false},
	} {
		t.Run(tc.how, func(t *testing.T) {
			beside(t, g.UUID, tc.terminate, func(d *supervisedDaemon) {
				var culprits []*client
				for range tc.clients {
					culprits = append(culprits, start(t, g.UUID, d.status, append(limitTo(1024), third), tc.work, "0").started(t))
				}
				if tc.work == "spin" {
					end(t, d, culprits, tc.terminate)
				}
				for _, c := range culprits {
					figure(t, "the culprit: %s", c.outcome())
				}
			})
		})
	}
}

// beside has something happen to a client next to one that computes, and tells what becomes
// of that, of the server and of a client that comes afterwards.
func beside(t *testing.T, uuid string, harmless bool, happen func(*supervisedDaemon)) {
	t.Helper()
	d := supervised(t, uuid)
	xids := watchXIDs(t, uuid)
	idle := start(t, uuid, d.status, limitTo(1024), "hold", "64")
	idle.held(t)
	neighbor := start(t, uuid, d.status, append(limitTo(2048), third), "compute", "5").started(t)
	began := time.Now()
	happen(d)
	figure(t, "it ended within %s", time.Since(began).Round(time.Millisecond))
	told(t, d, uuid, "at once")
	outcome := neighbor.outcome()
	figure(t, "its neighbor in a kernel: %s", outcome)
	told(t, d, uuid, "once that neighbor ended")
	if _, err := fmt.Fprintln(idle.in); err != nil {
		t.Error(err)
	}
	idle.in.Close()
	figure(t, "its idle neighbor: %s", idle.outcome())
	if harmless && !strings.Contains(outcome, "rate ") {
		t.Error("the way in which the driver ends tasks harms their neighbors")
	}
	told(t, d, uuid, "once both neighbors ended")
	began = time.Now()
	next := start(t, uuid, d.status, limitTo(1024), "hold", "64")
	said := make(chan string, 1)
	go func() {
		next.lines.Scan()
		said <- next.lines.Text()
	}()
	select {
	case words := <-said:
		figure(t, "a client that comes afterwards says %q after %s", words, time.Since(began).Round(time.Millisecond))
	case <-time.After(30 * time.Second):
		figure(t, "a client that comes afterwards waits for more than 30 s")
	}
	told(t, d, uuid, "in the end")
	figure(t, "XIDs: %v", xids())
}

// told is what the daemon and the plugin say.
func told(t *testing.T, d *supervisedDaemon, uuid, when string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	words := ""
	servers, err := d.control.Servers(ctx)
	for _, server := range servers {
		state, err := d.control.Ask(ctx, fmt.Sprintf("get_server_status %d", server))
		words += fmt.Sprintf("server %d %q %v; ", server, state, err)
	}
	status := d.Status(uuid)
	figure(t, "%s: %s%v; the plugin: ready %v, server %s, culprit %d, reason %q", when, words, err, status.Ready, status.Server, status.Culprit, status.Reason)
	for _, name := range []string{"server.log", "control.log", "gate.log"} {
		for _, line := range d.news(name) {
			figure(t, "%s: %s", name, line)
		}
	}
}

var (
	// worth matches what a log says besides questions and answers, usual what every client's
	// way through a server leaves.
	worth = regexp.MustCompile(`(?i)server [0-9]|client|status|exit|fault|error|fail`)
	usual = regexp.MustCompile(`Cmd:|get_server|NEW CLIENT|new client request|connected$|worker thread|is ACTIVE|default pinned|Initializing server|control daemon on socket`)
)

// news is what a log has got since it was last asked for, without the plugin's questions.
func (d *supervisedDaemon) news(name string) []string {
	text, err := os.ReadFile(filepath.Join(d.status.LogDir, name))
	if err != nil {
		return []string{err.Error()}
	}
	read := min(d.read[name], len(text))
	d.read[name] = len(text)
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(string(text[read:])), "\n") {
		if worth.MatchString(line) && !usual.MatchString(line) {
			lines = append(lines, line)
		}
	}
	if len(lines) > 20 {
		lines = append(lines[:20], fmt.Sprintf("and %d lines", len(lines)-20))
	}
	return lines
}

// end kills clients in a kernel, after the work of all was terminated where that is wanted.
func end(t *testing.T, d *supervisedDaemon, culprits []*client, terminate bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	servers, err := d.control.Servers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range culprits {
		for _, server := range servers {
			clients, err := d.control.Clients(ctx, server)
			figure(t, "the clients of server %d are %v, %v; this one is process %d", server, clients, err, c.cmd.Process.Pid)
			if began := time.Now(); terminate && slices.Contains(clients, c.cmd.Process.Pid) {
				figure(t, "terminate_client answers %v after %s", d.control.Terminate(ctx, server, c.cmd.Process.Pid), time.Since(began).Round(time.Millisecond))
			}
		}
	}
	for _, c := range culprits {
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// watchXIDs gathers the GPU's XIDs until it is asked for them, a second after the last.
func watchXIDs(t *testing.T, uuid string) func() []uint64 {
	t.Helper()
	b := nvidia.New(driver().Library(), 10*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	heard, ended := make(chan uint64, 64), make(chan error, 1)
	go func() {
		ended <- b.Watch(ctx, []string{uuid}, func(e hardware.Event) { heard <- e.XID })
	}()
	t.Cleanup(func() { cancel(); b.Close() })
	return func() []uint64 {
		var all []uint64
		for {
			select {
			case xid := <-heard:
				all = append(all, xid)
			case err := <-ended:
				t.Logf("events are not told: %v", err)
				return all
			case <-time.After(time.Second):
				return all
			}
		}
	}
}
