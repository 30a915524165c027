// SPDX-License-Identifier: MPL-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// asProgram makes the test binary the program.
const asProgram = "NOMAD_GPU_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		program.Main()
	}
	os.Exit(m.Run())
}

// complete is what a shell is offered for a line, and the exit code.
func complete(t *testing.T, line string) ([]string, int) {
	t.Helper()
	shell := exec.Command(os.Args[0])
	shell.Env = append(os.Environ(), asProgram+"=1", "COMP_LINE="+programName+" "+line, "NOMAD_NAMESPACE=", "NOMAD_ADDR=", "NOMAD_GPU_ADDR=")
	out, err := shell.Output()
	if exit, ok := err.(*exec.ExitError); ok && len(exit.Stderr) > 0 || err != nil && !ok {
		t.Errorf("%q: %v", line, err)
	}
	words := strings.Fields(string(out))
	slices.Sort(words)
	return words, shell.ProcessState.ExitCode()
}

// A shell offers what the service that the line names knows, as far as the line goes.
func TestNamesOfTheClusterAreCompleted(t *testing.T) {
	var token string
	p := &placement{sent: map[string]string{}}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("X-Nomad-Token")
		if r.URL.Path == "/v1/namespaces" {
			_, _ = w.Write([]byte(`[{"Name":"default"},{"Name":"research"},{"Name":"$(reboot)"}]`))
			return
		}
		p.ServeHTTP(w, r)
	}))
	defer service.Close()
	at := " -address " + service.URL + " "
	for line, want := range map[string]string{
		"explain" + at:                           "held other train",
		"explain" + at + "t":                     "train",
		"explain" + at + "-namespace research ":  "",
		"status" + at + "-node ":                 "gpu-1 gpu-2",
		"status" + at + "-queue ":                "ml",
		"status" + at + "-job ":                  "held other train",
		"run -namespace=x" + at + "-namespace r": "research",
		"plan" + at + "-namespace ":              "default research",
		"report" + at + "-by n":                  "namespace node",
		"exp":                                    "explain export",
	} {
		if got, code := complete(t, line); strings.Join(got, " ") != want || code != 0 {
			t.Errorf("%q is completed with %q, exit code %d; want %q", line, got, code, want)
		}
	}
	if complete(t, "status -token s.e-c-r-e-t"+at+"-node "); token != "s.e-c-r-e-t" {
		t.Errorf("the service was asked with the token %q", token)
	}
}

// Without the service, permission, or a right address, a shell is offered nothing and told
// nothing.
func TestCompletionNeverFails(t *testing.T) {
	denied := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Permission denied", http.StatusForbidden) }))
	defer denied.Close()
	for _, line := range []string{
		"explain -address " + denied.URL + " ", "status -address " + denied.URL + " -namespace ", "explain -address http://127.0.0.1:1 ",
		"explain -address nonsense ", "explain -ca-cert /nonexistent ",
	} {
		if got, code := complete(t, line); len(got) != 0 || code != 0 {
			t.Errorf("%q is completed with %q, exit code %d", line, got, code)
		}
	}
}
