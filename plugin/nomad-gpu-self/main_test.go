// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// answering plays the driver for one request, and returns what was asked.
func answering(t *testing.T, answer string) (asked <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "self.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	t.Setenv(gpu.EnvSelfSocket, path)
	said := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		line := make([]byte, gpu.MaxSelfRequest)
		n, _ := conn.Read(line)
		said <- string(line[:n])
		_, _ = conn.Write([]byte(answer))
		_ = conn.Close()
	}()
	return said
}

func TestCommands(t *testing.T) {
	const done = `{"version":1,"message":"done"}` + "\n"
	for name, tc := range map[string]struct {
		line, answer         string
		code                 int
		asked, stdout, tells string
	}{
		"a wish":                 {"yield", done, 0, `{"version":1,"action":"yield"}` + "\n", "done\n", ""},
		"as JSON":                {"want -json", done, 0, `{"version":1,"action":"want"}` + "\n", `"message": "done"`, ""},
		"another share":          {"resize compute=0.6 limit=1 memory_limit=12G", done, 0, `{"version":1,"action":"resize","resize":{"compute_milli":600,"limit_milli":1000,"memory_limit_mib":12288}}` + "\n", "done\n", ""},
		"a message that steers":  {"yield", `{"version":1,"message":"\u001b[2Jdone\u009b"}` + "\n", 0, `{"version":1,"action":"yield"}` + "\n", "\uFFFD[2Jdone\uFFFD\n", ""},
		"a refusal that steers":  {"yield", `{"version":1,"error":"\u001b[2Jno"}` + "\n", 1, `{"version":1,"action":"yield"}` + "\n", "", "\uFFFD[2Jno\n"},
		"a refusal":              {"saved", `{"version":1,"error":"not now"}` + "\n", 1, `{"version":1,"action":"saved"}` + "\n", "", "not now\n"},
		"an answer of garbage":   {"status", "\x00\n", 1, `{"version":1,"action":"status"}` + "\n", "", "read the driver's answer"},
		"half an answer":         {"status", `{"version":1`, 1, `{"version":1,"action":"status"}` + "\n", "", "read the driver's answer"},
		"an answer that is long": {"status", strings.Repeat("x", gpu.MaxSelfAnswer+1) + "\n", 1, `{"version":1,"action":"status"}` + "\n", "", "read the driver's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := answering(t, tc.answer)
			var stdout, stderr bytes.Buffer
			code := program.Run(strings.Fields(tc.line), &stdout, &stderr)
			if code != tc.code || !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.tells) {
				t.Errorf("exit code %d, %q, %q", code, stdout.String(), stderr.String())
			}
			if got := <-asked; got != tc.asked {
				t.Errorf("asked %q", got)
			}
		})
	}
}

// A driver that refuses a process does so before it has read what it wants.
func TestARefusalBeforeTheRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "self.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte(`{"version":1,"error":"not yours"}` + "\n"))
	_ = conn.Close()
	if _, err := exchange(client, gpu.SelfRequest{Action: gpu.SelfYield}); err == nil || err.Error() != "not yours" {
		t.Errorf("got %v", err)
	}
}

func TestMistakesAskNothing(t *testing.T) {
	t.Setenv(gpu.EnvSelfSocket, filepath.Join(t.TempDir(), "none"))
	for line, want := range map[string]string{
		"resize":                         "takes 1 to 3 arguments",
		"resize compute":                 `compute: "" is not valid (a fraction`,
		"resize compute=60%":             `; write 0.6`,
		"resize compute=0.5 compute=0.6": "compute: it is given twice",
		"resize gpu=other":               `"gpu=other" is not valid (compute=0.6, limit=0.9 or memory_limit=12G)`,
		"resize memory_limit=12":         "the unit is missing",
		"yield now":                      `unexpected argument "now"`,
		"kill":                           `unknown command "kill"`,
	} {
		var stdout, stderr bytes.Buffer
		if code := program.Run(strings.Fields(line), &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, %q", line, code, stderr.String())
		}
	}
	var stdout, stderr bytes.Buffer
	if code := program.Run([]string{"status"}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), os.Getenv(gpu.EnvSelfSocket)+" is not there: the task has no GPU") {
		t.Errorf("without a socket: exit code %d, %q", code, stderr.String())
	}
}

func TestStatusForPeople(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	err := show(&out, gpu.SelfAnswer{Message: "done", Status: &gpu.SelfStatus{GPUs: []gpu.SelfGPU{
		{UUID: "GPU-a", Model: "H100", Share: gpu.Share{MemoryMiB: 20480, MemoryLimitMiB: 24576, GuaranteeMilli: 250, LimitMilli: 500},
			Use: &gpu.SelfUse{MeasuredAt: now.Add(-2 * time.Second), MemoryMiB: 1024, Milli: -1, Processes: 1}, Neighbors: gpu.SelfNeighbors{Tasks: 2, MemoryMiB: 2048, Milli: 300, GuaranteeMilli: 400},
			Seat: &gpu.SelfSeat{State: gpu.SeatSuspended, Since: now, Priority: 40, Waiting: 3, Ahead: 1, NextTurn: now.Add(time.Hour), Idle: true, Asked: gpu.SelfWant, Fixed: true}},
		{UUID: "GPU-b", Whole: true, DeviceMiB: 81559},
	}}}, now)
	want := `done
GPU GPU-a H100
  share      20G of memory, up to 24G while others leave it, compute 0.25, at most 0.5
  use        1G of memory, compute not measured, 1 process, 2s ago
  neighbors  2 tasks, 2G of memory, compute 0.3, 0.4 guaranteed
  seat       suspended since 2026-03-01T12:00:00Z, priority 40
  waiting    3 other tasks; 1 of them before this one; it comes before all from 2026-03-01T13:00:00Z on; it does not want the GPU back now; it has asked for want; it cannot be suspended as it is
GPU GPU-b
  share      the whole GPU, 81559M
  use        not measured yet
`
	if err != nil || out.String() != want {
		t.Errorf("got %v\n%s", err, out.String())
	}
}
