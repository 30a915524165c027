package agentlog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// asPlugin makes this test's program a plugin that logs what it is told.
const asPlugin = "AGENTLOG_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) == "" {
		os.Exit(m.Run())
	}
	Outlive("agentlog-test")
	log := hclog.New(&hclog.LoggerOptions{JSONFormat: true})
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		log.Info(orders.Text())
		os.Stdout.WriteString("logged\n")
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

func TestWithoutAnAgentLinesGoToTheSystemLog(t *testing.T) {
	read, agent, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	read.Close()
	var system bytes.Buffer
	opened := 0
	w := &writer{agent: agent, orphaned: func() (io.Writer, error) { opened++; return &system, nil }}
	for _, line := range []string{"one\n", "two\n"} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("writing %q gives %d, %v", line, n, err)
		}
	}
	if system.String() != "one\ntwo\n" || opened != 1 {
		t.Errorf("the system log, opened %d times, has %q", opened, system.String())
	}

	w = &writer{agent: agent, orphaned: func() (io.Writer, error) { return nil, errors.New("no system log here") }}
	if n, err := w.Write([]byte("three\n")); n != 6 || err != nil {
		t.Errorf("without a system log, writing gives %d, %v", n, err)
	}
}
