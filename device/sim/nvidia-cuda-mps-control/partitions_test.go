// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// Static partitions are as NVIDIA documents them: the original of that branch could not
// be had.
func TestStaticPartitions(t *testing.T) {
	program, server := standIn(t, "590")
	w := newTalk(t, program, server)
	refused := func(command string) {
		t.Helper()
		if answer := w.ask(command); !strings.HasPrefix(answer, "Failed") {
			t.Errorf("%s: %q", command, answer)
		}
	}
	add := func(chunks string) string {
		t.Helper()
		answer := w.ask("sm_partition add GPU-0 " + chunks)
		id, found := strings.CutPrefix(answer, "Partition GPU-0/")
		id, created := strings.CutSuffix(id, " created")
		if !found || !created {
			t.Fatalf("a partition of %s chunks: %q", chunks, answer)
		}
		return id
	}
	w.start("-d")
	if answer := w.ask("sm_partition add GPU-0 1"); !strings.Contains(answer, "not enabled") {
		t.Errorf("a daemon that was not started for partitions: %q", answer)
	}
	w.ask("quit -t 1")
	w.untilEnded()
	w.start("-d", "-S")
	if answer := w.ask("lspart"); answer != "" {
		t.Errorf("without a server: %q", answer)
	}
	startServer := func() {
		w.ask("start_server -uid 0")
		w.until("get_server_list", func(answer string) bool { w.server = answer; return answer != "" })
		w.until("get_server_status "+w.server, func(answer string) bool { return answer == "ACTIVE" })
	}
	startServer()

	c := mpsctl.Control{Program: program, PipeDir: w.pipe, Env: w.env, Timeout: time.Minute}
	check := func(what string, free int, want ...mpsctl.Partition) {
		t.Helper()
		p, err := c.Partitions(t.Context())
		if err != nil || p.Chunks != 16 || p.Multiprocessors != 132 || p.FreeChunks != free || len(p.All) != len(want) {
			t.Fatalf("%s: %+v, %v", what, p, err)
		}
		for i, one := range want {
			if p.All[i] != one {
				t.Errorf("%s: %+v, want %+v", what, p.All[i], one)
			}
		}
	}
	check("at first", 16)
	for _, chunks := range []string{"0", "17", "-1", "x"} {
		refused("sm_partition add GPU-0 " + chunks)
	}
	refused("sm_partition add GPU-1 1")
	refused("sm_partition rm GPU-0 x")
	large := add("10")
	refused("sm_partition add GPU-0 7")
	client := exec.Command("sleep", "600")
	client.Env = append(os.Environ(), "CUDA_MPS_SM_PARTITION=GPU-0/"+large)
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = client.Process.Kill(), client.Wait() }()
	w.behave("clients " + strconv.Itoa(client.Process.Pid))
	w.until("lspart", func(answer string) bool { return strings.Contains(answer, "Yes") })
	check("with a client", 6, mpsctl.Partition{ID: large, Chunks: 10, Used: true})
	refused("sm_partition rm GPU-0 " + large)
	_, _ = client.Process.Kill(), client.Wait()
	w.ask("sm_partition rm GPU-0 " + large)
	check("removed", 16)
	if again := add("10"); again != large {
		t.Errorf("the same chunks are %s first, and then %s", large, again)
	}
	// Nothing says that partitions outlive their server.
	pid, _ := strconv.Atoi(w.server)
	if p, err := os.FindProcess(pid); err != nil || p.Kill() != nil {
		t.Fatal(pid, err)
	}
	w.until("get_server_list", func(answer string) bool { return answer == "" })
	startServer()
	check("after the server's end", 16)
}
