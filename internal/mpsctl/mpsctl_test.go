// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// program writes a shell script that stands for the control program: what it is
// asked is on its standard input.
func program(t *testing.T, script string) Control {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pipe"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "control")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nread -r q\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Control{Program: path, PipeDir: filepath.Join(dir, "pipe"), Timeout: 20 * time.Second}
}

func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		name, script, want string
		err                error
	}{
		{"an answer", `echo " 100.0"`, "100.0", nil},
		{"none", `true`, "", nil},
		{"several lines", `echo 1; echo 2`, "1\n2", nil},
		{"a command of later branches", `echo "Unknown command \"$q\""`, "", ErrUnknown},
		{"the socket of tasks", `echo "Insufficient privileges for UID 0."`, "", ErrRefused},
		{"quit on the socket of tasks", `echo "Not enough privilege to execute quit command"`, "", ErrRefused},
		{"a server that has ended", `echo "Server 17277 not found"`, "", ErrNoServer},
		{"no client of any server", `echo "Server not found"`, "Server not found", nil},
		{"the question and the daemon meant", `echo "$q $CUDA_MPS_PIPE_DIRECTORY $HOME$SECRET" `, "", nil},
	} {
		t.Setenv("SECRET", "leaked")
		c := program(t, tc.script)
		got, err := c.Ask(t.Context(), "question 1")
		if tc.name == "the question and the daemon meant" {
			tc.want = "question 1 " + c.PipeDir + " /root"
		}
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: got %q, %v", tc.name, got, err)
		}
	}
}

func TestDroppedQuestionIsAskedAgain(t *testing.T) {
	c := program(t, `if mkdir "$CUDA_MPS_PIPE_DIRECTORY/1" 2>/dev/null || mkdir "$CUDA_MPS_PIPE_DIRECTORY/2" 2>/dev/null; then echo "Cannot send command to MPS control daemon process" >&2; exit 1; fi; echo yes`)
	if got, err := c.Ask(t.Context(), "q"); got != "yes" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	c = program(t, `echo x >> "$CUDA_MPS_PIPE_DIRECTORY/asked"; echo "Cannot find MPS control daemon process" >&2; exit 1`)
	if _, err := c.Ask(t.Context(), "q"); err == nil || !strings.Contains(err.Error(), "Cannot find") {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(c.PipeDir, "asked")); string(text) != "x\n" {
		t.Errorf("asked %q (%v) although there is no daemon", text, err)
	}
	c = program(t, `exit 1`)
	if _, err := c.Ask(t.Context(), "q"); err == nil {
		t.Error("a daemon that drops all questions answered")
	}
}

func TestQuestionsAreBounded(t *testing.T) {
	c := program(t, `exec sleep 60`)
	c.Timeout = 50 * time.Millisecond
	if _, err := c.Ask(t.Context(), "q"); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Ask(ctx, "q"); !errors.Is(err, context.Canceled) {
		t.Errorf("a question that was not given its time: %v", err)
	}
}

func TestProcesses(t *testing.T) {
	for _, tc := range []struct {
		answer string
		want   []int
		bad    bool
	}{
		{"", nil, false}, {"12\n13", []int{12, 13}, false}, {" 12 ", []int{12}, false},
		{"Server 1 not found", nil, true}, {"1", nil, true}, {"0", nil, true}, {"-5", nil, true},
	} {
		c := program(t, "echo '"+tc.answer+"'")
		for name, ask := range map[string]func() ([]int, error){
			"servers": func() ([]int, error) { return c.Servers(t.Context()) },
			"clients": func() ([]int, error) { return c.Clients(t.Context(), 7) },
		} {
			if got, err := ask(); !slices.Equal(got, tc.want) || (err != nil) != tc.bad {
				t.Errorf("%s of %q: %v, %v", name, tc.answer, got, err)
			}
		}
	}
}

func TestTerminate(t *testing.T) {
	for answer, bad := range map[string]bool{"0": false, "": false, "1": true, "Invalid process 5!\n1": true, "Unknown command \"terminate_client\"": true} {
		c := program(t, `[ "$q" = "terminate_client 7 5" ] || exit 3; echo '`+answer+`'`)
		if err := c.Terminate(t.Context(), 7, 5); (err != nil) != bad {
			t.Errorf("answer %q: %v", answer, err)
		}
	}
}

// The original loses answers where two processes ask at once.
func TestQuestionsComeOneAtATime(t *testing.T) {
	c := program(t, `mkdir "$CUDA_MPS_PIPE_DIRECTORY/busy" || exit 2; sleep 0.01; rmdir "$CUDA_MPS_PIPE_DIRECTORY/busy"; echo yes`)
	failed := make(chan error)
	for range 8 {
		go func() {
			_, err := c.Ask(t.Context(), "q")
			failed <- err
		}()
	}
	for range 8 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	c.Timeout = 50 * time.Millisecond
	held, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := c.Ask(t.Context(), "q"); !errors.Is(err, ErrTimeout) {
		t.Errorf("behind a question that does not end: %v", err)
	}
}

func TestValueThatGotLostIsAskedAgain(t *testing.T) {
	c := program(t, `mkdir "$CUDA_MPS_PIPE_DIRECTORY/1" 2>/dev/null || echo yes`)
	if got, err := c.Value(t.Context(), "q"); got != "yes" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}
