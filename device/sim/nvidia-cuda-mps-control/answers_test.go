// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// original is NVIDIA's program of a branch, where e2e/prepare could fetch it.
func original(t *testing.T, branch string) string {
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

// standIn builds this program as branch's, and as the server, into two folders.
func standIn(t *testing.T, branch string) (program, server string) {
	t.Helper()
	dir := t.TempDir()
	program, server = filepath.Join(dir, branch, "nvidia-cuda-mps-control"), filepath.Join(dir, "bin", serverName)
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(server), 0o755), os.Link(program, server)); err != nil {
		t.Fatal(err)
	}
	return program, server
}

// talk is one conversation with a daemon, written down.
type talk struct {
	t             *testing.T
	program, pipe string
	env           []string
	text          strings.Builder
	server        string
}

func newTalk(t *testing.T, program, server string) *talk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a control daemon answers root only")
	}
	dir, err := os.MkdirTemp("", "mps") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &talk{t: t, program: program, pipe: filepath.Join(dir, "pipe")}
	for _, sub := range []string{"pipe", "log"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.env = []string{"PATH=" + filepath.Dir(server) + ":" + os.Getenv("PATH"),
		"CUDA_MPS_PIPE_DIRECTORY=" + w.pipe, "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "log"), "CUDA_VISIBLE_DEVICES=GPU-0"}
	t.Cleanup(func() { w.run(nil, "quit -t 1\n") })
	return w
}

// run runs the program, and returns what it printed and its exit status.
func (w *talk) run(args []string, in string) (string, int) {
	w.t.Helper()
	cmd := exec.Command(w.program, args...)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = w.env, strings.NewReader(in), time.Minute
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return string(out), 0
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	}
	w.t.Fatal(err)
	return "", 0
}

// start notes how the daemon starts, and what it makes.
func (w *talk) start(args ...string) {
	_, code := w.run(args, "")
	fmt.Fprintf(&w.text, "$ %s: %d\n", strings.Join(args, " "), code)
	w.files()
}

func (w *talk) files() {
	entries, err := os.ReadDir(w.pipe)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, entry := range entries {
		if slices.Contains([]string{"behavior", "terminated", "log"}, entry.Name()) {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			w.t.Fatal(err)
		}
		fmt.Fprintf(&w.text, "  %s %s\n", info.Mode(), entry.Name())
	}
}

// ask notes an answer; S stands for the server's process ID.
func (w *talk) ask(command string) string {
	in := command
	if w.server != "" {
		in = regexp.MustCompile(`\bS\b`).ReplaceAllString(command, w.server)
	}
	out, code := w.run(nil, in+"\n")
	if w.server == "" && command == "get_server_list" && strings.TrimSpace(out) != "" {
		w.server = strings.TrimSpace(out)
	}
	fmt.Fprintf(&w.text, "> %s: %d\n", command, code)
	for line := range strings.Lines(out) {
		if w.server != "" {
			line = named(line, w.server, "S")
		}
		fmt.Fprintf(&w.text, "%s\n", strings.TrimRight(line, "\n"))
	}
	return strings.TrimSpace(out)
}

func (w *talk) behave(lines ...string) {
	if err := os.WriteFile(filepath.Join(w.pipe, "behavior"), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// named puts a name in the place of a process ID, and not in that of a part of another
// number, such as 512 of 512M.
func named(text, pid, name string) string {
	return regexp.MustCompile(`\b`+pid+`\b`).ReplaceAllString(text, name)
}

// become notes what a program gets that says what it is, and closes when it has
// waited a while in vain.
func (w *talk) become(kind mpswire.Kind) {
	w.t.Helper()
	c, err := dial(w.pipe, "control", kind)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	wait := time.Minute
	if kind == 0 || kind >= mpswire.KindUI {
		wait = 100 * time.Millisecond // it gets nothing
	}
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		w.t.Fatal(err)
	}
	got := "a connection to the server"
	if kind == mpswire.KindClient {
		_, err = c.ReceiveFile()
	} else if _, err = c.Receive(); err == nil {
		got = "a packet"
	}
	switch {
	case errors.Is(err, io.EOF):
		got = "the end"
	case errors.Is(err, os.ErrDeadlineExceeded):
		got = "nothing"
	case err != nil:
		got = err.Error()
	}
	fmt.Fprintf(&w.text, "# %s: %s\n", kind, got)
}

// until asks without a note until the answer is another.
func (w *talk) until(command string, done func(answer string) bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		out, _ := w.run(nil, strings.ReplaceAll(command, " S", " "+w.server)+"\n")
		if done(strings.TrimSpace(out)) {
			return
		}
	}
	w.t.Fatalf("%q has another answer", command)
}

// untilEnded waits for the end of a daemon that has answered that it quits: until then it
// has its lock, and another does not start.
func (w *talk) untilEnded() {
	w.t.Helper()
	lock, err := os.Open(filepath.Join(w.pipe, "control_lock"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		w.t.Fatal(err)
	}
}

// script is what is asked of every branch.
func (w *talk) script() string {
	w.ask("get_server_list")
	w.start("-d", "-S") // none of them has static partitions
	w.start("-d", "-multiuser-server")
	if _, err := os.Stat(filepath.Join(w.pipe, "control")); errors.Is(err, fs.ErrNotExist) {
		w.start("-d")
	}
	w.start("-d")
	for _, command := range []string{
		"get_server_list", "get_default_active_thread_percentage", "set_default_active_thread_percentage 37",
		"get_default_active_thread_percentage", "set_default_active_thread_percentage 0", "set_default_active_thread_percentage 101",
		"get_default_device_pinned_mem_limit 0",
	} {
		w.ask(command)
	}
	for _, limit := range []string{"512M", "1023M", "1024M", "1500M", "14848M", "80896M", "81559M", "8G", "12", "x"} {
		w.ask("set_default_device_pinned_mem_limit 0 " + limit)
		w.ask("get_default_device_pinned_mem_limit 0")
	}
	w.ask("set_default_device_pinned_mem_limit 0 80896M")
	for _, command := range []string{"get_default_client_priority", "set_default_client_priority 1", "get_default_client_priority", "set_default_client_priority 2", "set_default_client_priority 0"} {
		w.ask(command)
	}
	w.behave("initializing")
	w.ask("start_server -uid 0")
	w.until("get_server_list", func(answer string) bool { w.server = answer; return answer != "" })
	for _, command := range []string{"get_server_list", "get_server_status S", "get_client_list S", "get_active_thread_percentage S", "get_device_pinned_mem_limit S 0", "terminate_client S 1"} {
		w.ask(command)
	}
	client := exec.Command("sleep", "600")
	if err := client.Start(); err != nil {
		w.t.Fatal(err)
	}
	defer func() { _, _ = client.Process.Kill(), client.Wait() }()
	pid := strconv.Itoa(client.Process.Pid)
	w.behave("clients " + pid)
	w.until("get_client_list S", func(answer string) bool { return answer == pid })
	for _, command := range []string{
		"get_server_status S", "get_active_thread_percentage S", "set_active_thread_percentage S 55", "get_active_thread_percentage S",
		"get_default_active_thread_percentage", "get_device_pinned_mem_limit S 0", "set_device_pinned_mem_limit S 0 14848M",
		"get_device_pinned_mem_limit S 0", "get_default_device_pinned_mem_limit 0", "set_default_active_thread_percentage 80", "get_active_thread_percentage S",
		"get_server_status 1", "get_client_list 1", "get_active_thread_percentage 1", "get_device_pinned_mem_limit 1 0", "terminate_client 1 1",
		"lspart", "sm_partition add GPU-0 1", "garbage", "start_server -uid 0", "get_server_list",
	} {
		w.ask(command)
	}
	w.ask("terminate_client S 999999999")
	out, code := w.run(nil, "terminate_client "+w.server+" "+pid+"\n")
	fmt.Fprintf(&w.text, "> terminate_client S C: %d\n%s", code, out)
	out, code = w.run(nil, "get_client_list "+w.server+"\n")
	fmt.Fprintf(&w.text, "> get_client_list S: %d\n%s", code, named(out, pid, "C"))
	w.behave("fault")
	w.ask("get_server_status S")
	w.behave("clients " + pid)
	for _, kind := range []mpswire.Kind{0, mpswire.KindServer, mpswire.KindClient, mpswire.KindUI, 5} {
		w.become(kind)
	}
	w.ask("get_server_list")
	w.behave("")
	w.become(mpswire.KindDebuggee)
	w.until("get_server_list", func(answer string) bool { return answer == "" })
	w.ask("quit -t 1")
	w.files()
	w.ask("get_server_list")
	return w.text.String()
}

func TestAnswersAreAsOfTheOriginal(t *testing.T) {
	for branch, can := range branches {
		if can.static {
			continue // see TestStaticPartitions
		}
		t.Run(branch, func(t *testing.T) {
			program, server := standIn(t, branch)
			t.Run("original", func(t *testing.T) {
				golden.Compare(t, branch+".txt", newTalk(t, original(t, branch), server).script())
			})
			t.Run("stand-in", func(t *testing.T) {
				golden.Compare(t, branch+".txt", newTalk(t, program, server).script())
			})
		})
	}
}
