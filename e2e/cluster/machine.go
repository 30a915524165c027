// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// machine is one simulated machine while it is switched on.
type machine struct {
	// init is the first process, as the host sees it; namespace is its PID
	// namespace's name.
	init      *exec.Cmd
	namespace string
	// lifeline is held open as long as the machine should live; nil lets it
	// outlive this process.
	lifeline io.Closer
	// tmp is the machine's folder for temporary files.
	tmp string
}

// bootMachine switches a machine on. Its files go below dir. With detached, it
// outlives this process.
func bootMachine(ctx context.Context, bin, dir string, detached bool) (*machine, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return nil, fmt.Errorf("make boot ID: %w", err)
	}
	bootID := filepath.Join(dir, "boot_id")
	tmp := filepath.Join(dir, "tmp")
	err = errors.Join(os.MkdirAll(dir, 0o755), os.RemoveAll(tmp), os.Mkdir(tmp, 0o777), writeReadOnly(bootID, id))
	if err != nil {
		return nil, fmt.Errorf("prepare simulated machine: %w", err)
	}
	m := &machine{tmp: tmp}
	args := []string{"-boot-id", bootID}
	if !detached {
		args = append(args, "-lifeline")
	}
	m.init = exec.Command(filepath.Join(bin, "node"), args...)
	m.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Setsid: true}
	log, err := os.Create(filepath.Join(dir, "machine.log"))
	if err != nil {
		return nil, fmt.Errorf("prepare simulated machine: %w", err)
	}
	defer log.Close()
	m.init.Stderr = log // a detached machine must not hold on to our caller's pipe
	if !detached {
		if m.lifeline, err = m.init.StdinPipe(); err != nil {
			return nil, fmt.Errorf("boot simulated machine: %w", err)
		}
	}
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("boot simulated machine: %w", err)
	}
	if err := m.init.Start(); err != nil {
		return nil, fmt.Errorf("boot simulated machine (are you root?): %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("boot simulated machine: it said %q, and perhaps more in %s", line, log.Name()), err, m.powerOff())
	}
	m.namespace, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", m.pid()))
	if err != nil {
		return nil, errors.Join(err, m.powerOff())
	}
	return m, ctx.Err()
}

func writeReadOnly(path string, content []byte) error {
	return errors.Join(os.RemoveAll(path), os.WriteFile(path, content, 0o444))
}

func (m *machine) pid() int { return m.init.Process.Pid }

// path is where the host finds one of the machine's files.
func (m *machine) path(inside string) string {
	return fmt.Sprintf("/proc/%d/root%s", m.pid(), inside)
}

// powerOff ends every process of the machine at once and returns when they are
// gone.
func (m *machine) powerOff() error {
	if err := m.init.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("switch simulated machine off: %w", err)
	}
	// Its exit code is that of a killed process.
	_ = m.init.Wait()
	return nil
}

// start runs a program inside the machine; its output is appended to log.
// The channel is closed when the program ends.
func (m *machine) start(log string, env []string, argv ...string) (<-chan struct{}, error) {
	cmd := m.command(context.Background(), argv...)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	ended := make(chan struct{})
	go func() {
		// Its exit code is nsenter's; the log has the error.
		_ = cmd.Wait()
		close(ended)
	}()
	return ended, nil
}

// run runs a program inside the machine to its end and returns its output.
func (m *machine) run(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
	cmd := m.command(ctx, argv...)
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("run %q: %w\n%s", argv, err, out)
	}
	return out, nil
}

// command prepares a program to run inside the machine.
func (m *machine) command(ctx context.Context, argv ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.pid()), "--mount", "--pid", "--root", "--wdns=/", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, argv...)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		// The agent refuses to start with the first one set.
		return key == "AWS_CA_BUNDLE" || key == "TMPDIR" || strings.HasPrefix(key, "NOMAD_")
	}), "TMPDIR="+m.tmp)
	return cmd
}

// processes lists the host's PIDs of the machine's processes whose command line
// holds all the words.
func (m *machine) processes(words ...string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !m.owns(pid) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		line := strings.ReplaceAll(string(cmdline), "\x00", " ")
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// owns reports whether the process is in the machine's PID namespace, or below a
// process that is: a container has a namespace of its own.
func (m *machine) owns(pid int) bool {
	for pid > 1 && pid != m.pid() {
		namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if err != nil || namespace == m.namespace {
			return err == nil
		}
		if pid, err = parentOf(pid); err != nil {
			return false
		}
	}
	return false
}

func parentOf(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(status), "\nPPid:")
	parent, _, _ := strings.Cut(after, "\n")
	return strconv.Atoi(strings.TrimSpace(parent))
}

// kill ends a machine that another process booted, unless it is gone already.
func (r record) kill() error {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", r.PID))
	if err != nil || namespace != r.Namespace {
		return nil
	}
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("switch simulated machine off: %w", err)
	}
	return waitGone(r.PID)
}

// waitGone returns when the process has ended.
func waitGone(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
