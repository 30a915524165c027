package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

// dirs are a daemon's directories.
type dirs struct{ base, pipe, log, shm string }

// shortUUID is how much of a UUID names its directory: "GPU-1a2b3c4d-5e6f". The
// path of a socket has little more than a hundred characters.
const shortUUID = 17

// maxSocketPath is the longest path of a socket; longestSocket is the longest
// name of one below the MPS directory.
const (
	maxSocketPath = 107
	longestSocket = "/GPU-12345678-1234/pipe/control_privileged"
)

func dirsIn(root, uuid string) dirs {
	base := filepath.Join(root, uuid[:min(len(uuid), shortUUID)])
	return dirs{base, filepath.Join(base, "pipe"), filepath.Join(base, "log"), filepath.Join(base, "shm")}
}

// make creates the directories. Tasks run as any user: they must reach the pipe
// directory and write to the shared memory, and nothing else.
func (d dirs) make() error {
	for path, mode := range map[string]os.FileMode{
		d.base: 0o711, d.pipe: 0o755, d.log: 0o755, d.shm: 0o777 | os.ModeSticky,
	} {
		if err := os.MkdirAll(path, 0o711); err != nil {
			return fmt.Errorf("make MPS directory: %w", err)
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("make MPS directory: %w", err)
		}
	}
	return nil
}

// pidFile is where the control daemon writes its process ID.
func (d dirs) pidFile() string { return filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid") }

// control runs NVIDIA's control program for one daemon, as a shell would.
type control struct {
	program   string
	self      string
	multiUser bool
	hostShm   bool
	shmMiB    int64
	uuid      string
	dirs      dirs
	timeout   time.Duration
	// startScope moves processes to a systemd scope; nil without systemd.
	startScope func(context.Context, scope) error
}

// environment names the daemon that is meant. Nothing of the plugin's own
// environment that could name another one is passed on.
func (c control) environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/root",
		"CUDA_VISIBLE_DEVICES=" + c.uuid,
		"CUDA_MPS_PIPE_DIRECTORY=" + c.dirs.pipe,
		"CUDA_MPS_LOG_DIRECTORY=" + c.dirs.log,
	}
}

// start runs the daemon. The daemon sees its own directory as /dev/shm, which
// clients share and whose size is limited (see limitShm), in a mount namespace of its own: the plugin runs itself again
// there to mount it (see Exec). Or it shares the host's with tasks that do.
func (c control) start(ctx context.Context) error {
	err := c.launch(ctx, c.multiUser)
	if err != nil && c.multiUser && !errors.Is(err, errTimeout) {
		// Drivers that do not know the option serve one user at a time.
		err = c.launch(ctx, false)
	}
	if err != nil {
		return fmt.Errorf("start MPS control daemon: %w", err)
	}
	return nil
}

func (c control) launch(ctx context.Context, multiUser bool) error {
	args, attr, program := []string{"-d"}, &syscall.SysProcAttr{Setsid: true}, c.program
	if multiUser {
		args = append(args, "-multiuser-server")
	}
	if !c.hostShm {
		args = append([]string{ExecCommand, c.dirs.shm, c.program}, args...)
		program, attr.Unshareflags = c.self, syscall.CLONE_NEWNS
	}
	_, err := c.run(ctx, program, args, "", attr)
	return err
}

// find returns the daemon that lives in the directories. A PID file alone may
// name a process of another kind that got the number later.
func (c control) find() (process, error) {
	p, err := readPIDFile(c.dirs.pidFile())
	if err != nil {
		return process{}, err
	}
	if !p.environHas("CUDA_MPS_PIPE_DIRECTORY=" + c.dirs.pipe) {
		return process{}, fmt.Errorf("process %d is not the MPS control daemon: %w", p.PID, errGone)
	}
	return p, nil
}

// end stops the daemon, by force if it does not listen, and removes its
// directories.
func (c control) end(log hclog.Logger) {
	if p, err := c.find(); err == nil {
		log.Info("stopping MPS control daemon", "device", c.uuid, "pid", p.PID)
		if _, err := c.ask(context.Background(), "quit -t 1"); err != nil {
			p.kill()
		}
	}
	if err := c.dirs.unmountShm(); err != nil {
		log.Warn("cannot give shared memory back", "device", c.uuid, "error", err)
		return // removing would only empty it
	}
	if err := os.RemoveAll(c.dirs.base); err != nil {
		log.Warn("cannot remove MPS directories", "device", c.uuid, "error", err)
	}
}

// ask sends one command to the daemon and returns the answer.
func (c control) ask(ctx context.Context, command string) (string, error) {
	answer, err := c.run(ctx, c.program, nil, command+"\n", &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		return "", fmt.Errorf("ask MPS control daemon %q: %w", command, err)
	}
	return strings.TrimSpace(answer), nil
}

// errTimeout means that the control program did not come back.
var errTimeout = errors.New("no answer in time")

func (c control) run(parent context.Context, program string, args []string, stdin string, attr *syscall.SysProcAttr) (string, error) {
	ctx, cancel := context.WithTimeout(parent, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = c.environment(), "/", attr
	cmd.Stdin = strings.NewReader(stdin)
	// The daemon inherits the pipes; without a limit Wait would wait for it.
	cmd.WaitDelay = time.Second
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	switch {
	case parent.Err() != nil:
		return "", parent.Err() // it was not given its time
	case ctx.Err() != nil:
		return "", errTimeout
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case err != nil && problem.Len() > 0:
		err = fmt.Errorf("%w: %s", err, firstLine(problem.String()))
	}
	return out.String(), err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// setLimits gives the daemon its limits and reads them back: a daemon that
// takes a command need not have understood it.
func (c control) setLimits(ctx context.Context, s Spec) error {
	if s.MemoryMiB > 0 {
		if _, err := c.ask(ctx, fmt.Sprintf("set_default_device_pinned_mem_limit 0 %dM", s.MemoryMiB)); err != nil {
			return err
		}
	}
	if _, err := c.ask(ctx, fmt.Sprintf("set_default_active_thread_percentage %d", s.Percent)); err != nil {
		return err
	}
	return c.confirm(ctx, s)
}

// confirm asks whether the limits are in force.
func (c control) confirm(ctx context.Context, s Spec) error {
	if s.MemoryMiB > 0 {
		answer, err := c.ask(ctx, "get_default_device_pinned_mem_limit 0")
		if err != nil {
			return err
		}
		if mib, err := parseMemory(answer); err != nil || mib != s.MemoryMiB {
			return fmt.Errorf("%w: the memory limit is %q, not %dM", errUntrue, firstLine(answer), s.MemoryMiB)
		}
	}
	answer, err := c.ask(ctx, "get_default_active_thread_percentage")
	if err != nil {
		return err
	}
	if percent, err := strconv.ParseFloat(strings.TrimSuffix(firstLine(answer), "%"), 64); err != nil || int(percent+0.5) != s.Percent {
		return fmt.Errorf("%w: the thread percentage is %q, not %d", errUntrue, firstLine(answer), s.Percent)
	}
	return nil
}

// errUntrue means that the daemon does not have the limits that it was given.
var errUntrue = errors.New("the daemon's limits are not as set")

// memoryAmount is how the daemon may write an amount: "8192M", "8 GB", or bytes,
// decimal or not, after whatever it says before.
var memoryAmount = regexp.MustCompile(`(?i)(?:^|[\s:=])(0x[0-9a-f]+|[0-9]+)\s*([kmg]?)i?b?$`)

// parseMemory reads the amount at the end of an answer's first line, in MiB.
func parseMemory(s string) (int64, error) {
	match := memoryAmount.FindStringSubmatch(firstLine(s))
	if match == nil {
		return 0, fmt.Errorf("read memory limit %q: there is no amount", s)
	}
	number, err := strconv.ParseInt(match[1], 0, 64)
	if err != nil {
		return 0, fmt.Errorf("read memory limit %q: %w", s, err)
	}
	if number > math.MaxInt64>>20 {
		return 0, fmt.Errorf("read memory limit %q: the amount is out of range", s)
	}
	switch strings.ToUpper(match[2]) {
	case "G":
		return number << 10, nil
	case "M":
		return number, nil
	case "K":
		return number >> 10, nil
	}
	return number >> 20, nil
}
