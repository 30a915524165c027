// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/logmon"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// pipeSize is what a pipe holds before its writer waits.
const pipeSize = 64 << 10

// piped makes a task whose output goes to pipes that the test reads, in place of
// Nomad's log collector, and returns the reader of its stdout.
func (e *env) piped(config taskconfig.Config) (*drivers.TaskConfig, *os.File) {
	e.t.Helper()
	cfg := e.quietTask(config, func(cfg *drivers.TaskConfig) {
		cfg.StdoutPath, cfg.StderrPath = filepath.Join(e.dir, cfg.AllocID+".out"), filepath.Join(e.dir, cfg.AllocID+".err")
	})
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		must.NoError(e.t, unix.Mkfifo(path, 0o600))
	}
	stderr := openPipe(e.t, cfg.StderrPath)
	e.t.Cleanup(func() { _ = stderr.Close() })
	return cfg, openPipe(e.t, cfg.StdoutPath)
}

func openPipe(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(t, err)
	return f
}

// waitUntilFull waits until so much lies in a pipe that its writer must wait.
func waitUntilFull(t *testing.T, f *os.File) {
	t.Helper()
	eventually(t, "the pipe is full", func() bool {
		raw, err := f.SyscallConn()
		must.NoError(t, err)
		waiting := 0
		must.NoError(t, raw.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
		return err == nil && waiting > pipeSize-4096
	})
}

// counted is what "seq 1 N" writes.
func counted(n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(itoa(i+1) + "\n")
	}
	return text.String()
}

// A task whose output is not read waits, can be looked at and taken up by a new
// driver meanwhile, and goes on without a line lost.
func TestLogsOfABlockedReader(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg, stdout := e.piped(defaultTaskConfig("sh", "-c", "seq 1 60000; exit 3"))
		handle := e.start(cfg)
		waitUntilFull(t, stdout)
		result, err := e.harness.ExecTask(cfg.ID, []string{"echo", "answers"}, callTimeout)
		must.NoError(t, err)
		must.Eq(t, "answers\n", string(result.Stdout))
		e.restart()
		must.NoError(t, e.harness.RecoverTask(handle))
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)

		text, err := io.ReadAll(stdout)
		must.NoError(t, err)
		must.Eq(t, 3, e.wait(cfg.ID).ExitCode)
		must.True(t, counted(60000) == string(text), must.Sprintf("%d bytes arrived", len(text)))
	})
}

// The reader dies while the task writes; whoever reads next gets what the dead
// one had not taken.
func TestLogsOfADeadReader(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg, first := e.piped(defaultTaskConfig("sh", "-c", "seq 1 60000; exit 3"))
		e.start(cfg)
		waitUntilFull(t, first)
		taken := make([]byte, 100000)
		_, err := io.ReadFull(first, taken)
		must.NoError(t, err)
		must.NoError(t, first.Close())
		// The task fills the pipe again, and neither dies of SIGPIPE nor goes on.
		second := openPipe(t, cfg.StdoutPath)
		defer second.Close()
		waitUntilFull(t, second)
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)
		rest, err := io.ReadAll(second)
		must.NoError(t, err)
		must.Eq(t, 3, e.wait(cfg.ID).ExitCode)
		must.True(t, counted(60000) == string(taken)+string(rest), must.Sprintf("%d bytes arrived", len(taken)+len(rest)))
	})
}

// A task that waits for its reader is stopped like any other.
func TestStopOfATaskWhoseReaderIsGone(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		for _, readerDies := range []bool{false, true} {
			cfg, stdout := e.piped(defaultTaskConfig("sh", "-c", "trap 'exit 43' TERM; seq 1 60000"))
			e.start(cfg)
			waitUntilFull(t, stdout)
			if readerDies {
				must.NoError(t, stdout.Close())
			} else {
				defer stdout.Close()
			}
			began := time.Now()
			must.NoError(t, e.harness.StopTask(cfg.ID, 200*time.Millisecond, "SIGTERM"))
			must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
			must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
			must.Less(t, patience, time.Since(began), must.Sprint("the stop waited for the reader"))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// Nomad's client dies with its log collector, and the driver with it.
func TestLogsSurviveTheClient(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		script := "seq 1 20000; while [ ! -e /local/go ]; do sleep 0.02; done; seq 20001 60000; exit 3"
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", script))
		dir := cfg.TaskDir().LogDir
		collect := func() logmon.LogMon {
			collector := logmon.NewLogMon(hclog.NewNullLogger())
			must.NoError(t, collector.Start(&logmon.LogConfig{
				LogDir: dir, StdoutLogFile: "web.stdout", StderrLogFile: "web.stderr", MaxFiles: 10, MaxFileSizeMB: 10,
				StdoutFifo: filepath.Join(dir, ".web.stdout.fifo"), StderrFifo: filepath.Join(dir, ".web.stderr.fifo"),
			}))
			return collector
		}
		cfg.StdoutPath, cfg.StderrPath = filepath.Join(dir, ".web.stdout.fifo"), filepath.Join(dir, ".web.stderr.fifo")
		before := collect()
		handle := e.start(cfg)
		e.waitForLog(cfg, "\n20000\n")
		e.driver.Shutdown()
		must.NoError(t, before.Stop())
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "go"), nil, 0o644))

		after := collect()
		defer func() { must.NoError(t, after.Stop()) }()
		e.startDriver()
		must.NoError(t, e.harness.RecoverTask(handle))
		must.Eq(t, 3, e.wait(cfg.ID).ExitCode)
		e.waitForLog(cfg, "\n60000\n")
		must.True(t, counted(60000) == e.logs(cfg, "stdout"))
		_, err := os.Stat(filepath.Join(dir, "web.stdout.1"))
		must.True(t, errors.Is(err, fs.ErrNotExist))
	})
}

// A start dies after the task has begun, and everything of the first attempt is
// gone when Nomad repeats it: its log collector does not read any more.
func TestLogsOfARepeatedStart(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "echo out; echo err >&2; exit 3")
		cfg := e.task(config)
		e.victim(orders{Config: e.config, Task: cfg, Driver: config, DieAfter: "run"}, 0)
		e.waitForLog(cfg, "out\n")
		e.forgetProcesses()
		e.startDriver()
		e.start(cfg)
		must.Eq(t, 3, e.wait(cfg.ID).ExitCode)
		must.Eq(t, "out\nout\n", e.logs(cfg, "stdout"))
		must.Eq(t, "err\nerr\n", e.logs(cfg, "stderr"))
	})
}
