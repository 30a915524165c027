// SPDX-License-Identifier: MPL-2.0

package agentlog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// asPlugin makes this test's program a plugin that logs what it is told.
const asPlugin = "AGENTLOG_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(asAgent) != "" {
		agent()
	}
	Outlive("agentlog-test")
	log := hclog.New(&hclog.LoggerOptions{JSONFormat: true})
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		log.Info(orders.Text())
		os.Stdout.WriteString("logged\n")
	}
}

// asAgent makes a plugin of this test's an agent, which starts a plugin and prints its number:
// one that was used, one that was not, or one that looks for its agent too late.
const asAgent = "AGENTLOG_TEST_AGENT"

func agent() {
	if parent := os.Getenv(asAgent); parent != "agent" {
		for os.Args[1] == "late" && strconv.Itoa(os.Getppid()) == parent {
			time.Sleep(time.Millisecond)
		}
		EndUnused(func() bool { return os.Args[1] == "used" })
		select {}
	}
	plugin := exec.Command(os.Args[0], os.Args[1])
	plugin.Env = append(os.Environ(), asAgent+"="+strconv.Itoa(os.Getpid()))
	if _, err := plugin.StderrPipe(); err != nil {
		os.Exit(1)
	}
	if err := plugin.Start(); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString(strconv.Itoa(plugin.Process.Pid))
	time.Sleep(time.Second / 10) // the plugin sees its agent
	os.Exit(0)
}

func TestAPluginThatWasNotUsedEndsWithItsAgent(t *testing.T) {
	for _, kind := range []string{"used", "unused", "late"} {
		agent := exec.Command(os.Args[0], kind)
		agent.Env = append(os.Environ(), asPlugin+"=1", asAgent+"=agent")
		out, err := agent.Output()
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(string(out))
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			if kind == "used" {
				t.Fatal(err)
			}
			continue // it has ended
		}
		patience := map[string]int{"used": 2500, "unused": 60_000, "late": 60_000}[kind]
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		if err != nil || (n == 1) == (kind == "used") {
			t.Errorf("%s: ended is %v, %v", kind, n == 1, err)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
		_ = unix.Close(fd)
	}
}

func TestAPluginOutlivesItsAgent(t *testing.T) {
	plugin := exec.Command(os.Args[0])
	plugin.Env = append(os.Environ(), asPlugin+"=1")
	orders, err := plugin.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	done, err := plugin.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, agentsEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	plugin.Stderr = agentsEnd
	if err := plugin.Start(); err != nil {
		t.Fatal(err)
	}
	agentsEnd.Close()
	answers, lines := bufio.NewReader(done), bufio.NewReader(log)
	tell := func(what string) {
		t.Helper()
		io.WriteString(orders, what+"\n")
		if answer, err := answers.ReadString('\n'); err != nil {
			t.Fatalf("after %q the plugin answers %q: %v", what, answer, err)
		}
	}
	tell("the agent reads")
	if line, err := lines.ReadString('\n'); err != nil || !bytes.Contains([]byte(line), []byte("the agent reads")) {
		t.Errorf("the agent reads %q, %v", line, err)
	}
	log.Close()
	tell("the agent is dead")
	tell("and stays dead")
	orders.Close()
	if err := plugin.Wait(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
}

// recorder is a system log that keeps its lines.
type recorder struct{ lines []string }

func (r *recorder) Info(line string) error    { return r.add("info", line) }
func (r *recorder) Warning(line string) error { return r.add("warning", line) }
func (r *recorder) Err(line string) error     { return r.add("error", line) }

func (r *recorder) add(priority, line string) error {
	r.lines = append(r.lines, priority+" "+line)
	return nil
}

// deadAgent is the writing end of a pipe without a reader.
func deadAgent(t *testing.T) *os.File {
	t.Helper()
	read, agent, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	read.Close()
	return agent
}

// A plugin's logger writes JSON of every level, and leaves it to the agent to choose
// and to make it readable. The system log does neither.
func TestWithoutAnAgentPeopleReadTheSystemLog(t *testing.T) {
	system, opened := &recorder{}, 0
	w := &writer{agent: deadAgent(t), orphaned: func() (systemLog, error) { opened++; return system, nil }}
	log := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: w}).Named("driver")
	log.Trace("called", "method", "Fingerprint")
	log.Debug("detail")
	log.Info("started", "pid", 7, "task", "a b")
	log.Warn("late")
	log.Error("lost", "error", errors.New("gone"))
	want := []string{`info driver: started: pid=7 task="a b"`, "warning driver: late", "error driver: lost: error=gone"}
	if !slices.Equal(system.lines, want) || opened != 1 {
		t.Errorf("the system log, opened %d times, has %q, want %q", opened, system.lines, want)
	}
	// What a library prints by itself.
	if n, err := w.Write([]byte("plain\n")); n != 6 || err != nil || system.lines[len(system.lines)-1] != "info plain\n" {
		t.Errorf("writing gives %d, %v, and the system log has %q", n, err, system.lines)
	}
}

func TestWithoutASystemLogLinesAreDropped(t *testing.T) {
	w := &writer{agent: deadAgent(t), orphaned: func() (systemLog, error) { return nil, errors.New("no system log here") }}
	for range 2 {
		if n, err := w.Write([]byte("line\n")); n != 5 || err != nil {
			t.Errorf("writing gives %d, %v", n, err)
		}
	}
}
