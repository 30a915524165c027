// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
)

// disguise has the program ask for its share in another guise. The arguments after it are a control
// group that it enters, how often it forks away from its parent first, and the questions.
const disguise = "disguise"

const questions = "where,sms,alloc 1000000,alloc 1"

// guise is a way in which a program looks like another task's, or like none's.
type guise struct {
	group string
	forks int
	env   []string
}

// hostile prints, as one line of JSON, what a program gets in every guise: its namespace, its
// multiprocessors, and answers to requests for too much memory and for a little. Then it
// connects again and again, and prints each namespace when it is in that for the first time,
// and at SIGUSR1 how often it was in which.
func hostile() error {
	said := make(chan os.Signal, 1)
	signal.Notify(said, unix.SIGUSR1)
	pipe := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	none := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_") })
	at := "CUDA_MPS_PIPE_DIRECTORY=" + pipe
	with := func(more ...string) []string { return slices.Concat(none, more) }
	all := map[string]guise{
		"plain": {env: os.Environ()},
		"unset": {env: with(at)},
		"forged": {env: with(at, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=900G",
			"CUDA_MPS_SM_PARTITION=GPU-x/y", "CUDA_MPS_CLIENT_PRIORITY=0", "CUDA_MPS_PROTOCOL_VERSION=2", "CUDA_MPS_LOG_DIRECTORY=/tmp")},
		"daemon":  {forks: 2, env: with(at)},
		"no MPS":  {env: none},
		"default": {env: with(at + "/tasks/default")},
		"server":  {env: with(at + "/tasks")},
	}
	if group := childGroup(); group != "" {
		defer os.Remove(group)
		all["child group"] = guise{group: group, env: with(at)}
	}
	answers := map[string]string{}
	for name, g := range all {
		out := exec.Command("/proc/self/exe", disguise, g.group, fmt.Sprint(g.forks), questions)
		out.Env = g.env
		text, err := out.Output()
		if err != nil && len(text) == 0 {
			text = []byte(err.Error())
		}
		answers[name] = strings.TrimSpace(string(text))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		return err
	}
	seen := map[string]int{}
	for {
		where := whereNow()
		if seen[where]++; seen[where] == 1 {
			fmt.Printf("in %s\n", where)
		}
		select {
		case <-said:
			if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
				return err
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// whereNow is the namespace that a connection leads to, "" where none is to be had.
func whereNow() string {
	server, err := connect(controlSocket())
	if err != nil {
		return ""
	}
	defer server.Close()
	name, err := ask(server, "where")
	if err != nil {
		return ""
	}
	return name
}

// childGroup makes a control group below its own, "" where it may not.
func childGroup() string {
	groups, err := cgroup.Of(os.Getpid())
	if err != nil {
		return ""
	}
	for _, g := range groups {
		dir := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(strings.Join(g.Controllers, ","), "name="), g.Path, "inner")
		if g.Path != "/" && os.Mkdir(dir, 0o755) == nil {
			return dir
		}
	}
	return ""
}

// disguised prints its answers in one line; a forked one's go to what its first parent reads.
func disguised(args []string) error {
	if args[0] != "" {
		if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
	}
	if args[1] != "0" {
		next := exec.Command("/proc/self/exe", disguise, "", fmt.Sprint(int(args[1][0]-'1')), args[2])
		next.Stdout, next.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
		return next.Start() // and ends: it is an orphan
	}
	server, err := connect(controlSocket())
	if err != nil {
		return errors.New("no server")
	}
	defer server.Close()
	var answers []string
	for question := range strings.SplitSeq(args[2], ",") {
		answer, err := ask(server, question)
		if err != nil {
			return err
		}
		answers = append(answers, answer)
	}
	fmt.Println(strings.Join(answers, " "))
	return nil
}
