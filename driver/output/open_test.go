// SPDX-License-Identifier: MPL-2.0

package output

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// collected is a task whose output goes to pipes of Nomad's, as its log collector makes
// them, and what its driver keeps.
type collected struct {
	*testing.T
	cfg   *drivers.TaskConfig
	logs  string
	marks Marks
}

func newCollected(t *testing.T) *collected {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	logs := filepath.Join(dir, "alloc", "logs")
	must.NoError(t, os.MkdirAll(logs, 0o755))
	c := &collected{T: t, logs: logs, marks: MarksIn(filepath.Join(dir, "outputs")), cfg: &drivers.TaskConfig{
		ID: "task", AllocDir: dir, StdoutPath: filepath.Join(logs, ".web.stdout.fifo"), StderrPath: filepath.Join(logs, ".web.stderr.fifo"),
	}}
	for _, path := range []string{c.cfg.StdoutPath, c.cfg.StderrPath} {
		must.NoError(t, unix.Mkfifo(path, 0o600))
	}
	return c
}

// open opens the task's output as a start does.
func (c *collected) open() *Output {
	c.Helper()
	o, err := Open(c.cfg, c.marks)
	must.NoError(c, err)
	return o
}

// read opens the end of a pipe that Nomad reads.
func (c *collected) read(path string) *os.File {
	c.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(c, err)
	c.Cleanup(func() { _ = f.Close() })
	return f
}

// hasWriter reports whether someone has a pipe open for writing, by its reader.
func (c *collected) hasWriter(reader *os.File) bool {
	c.Helper()
	raw, err := reader.SyscallConn()
	must.NoError(c, err)
	must.NoError(c, raw.Control(func(fd uintptr) { _, err = unix.Read(int(fd), make([]byte, 1)) }))
	if err != nil {
		must.ErrorIs(c, err, unix.EAGAIN)
	}
	return err != nil
}

// stdio is where the output goes, in a stage that is there as long as use runs.
func (c *collected) stdio(o *Output, terminal bool, use func(stdout, stderr string)) {
	c.Helper()
	stage := c.stage()
	stdio, err := o.Stdio(stage, terminal)
	must.NoError(c, err)
	must.Eq(c, terminal, stdio.Terminal)
	use(stdio.Stdout, stdio.Stderr)
	must.NoError(c, rooted.RemoveStage(stage.Dir()))
}

func (c *collected) stage() *rooted.Stage {
	c.Helper()
	dir := filepath.Join(c.TempDir(), "stage")
	stage, err := rooted.NewStage(dir)
	must.NoError(c, err)
	c.Cleanup(func() { must.NoError(c, rooted.RemoveStage(dir)) })
	return stage
}

// same fails where two paths are not of one file.
func (c *collected) same(a, b string) {
	c.Helper()
	of := func(path string) os.FileInfo {
		info, err := os.Stat(path)
		must.NoError(c, err)
		return info
	}
	must.True(c, os.SameFile(of(a), of(b)), must.Sprintf("%s and %s", a, b))
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(entries)
}

// A start that was not begun before shows its container Nomad's pipes, and leaves them
// alone itself: whoever reads them sees their end with the container.
func TestOutputOfAStart(t *testing.T) {
	c := newCollected(t)
	stdout := c.read(c.cfg.StdoutPath)
	o := c.open()
	must.False(t, c.hasWriter(stdout))
	c.stdio(o, true, func(out, err string) {
		c.same(c.cfg.StdoutPath, out)
		c.same(c.cfg.StderrPath, err)
	})
	must.False(t, c.marks.of("task").exists())
	must.NoError(t, o.Opening())
	must.True(t, c.marks.of("task").exists())
	o.Release()
	o.Release() // harmless
	c.cfg.StdoutPath = ""
	o = c.open()
	defer o.Release()
	c.stdio(o, false, func(out, err string) {
		must.Eq(t, "", out)
		c.same(filepath.Join(c.logs, "web.stderr.0"), err)
	})
}

// A start that is repeated holds the pipes that still have a reader until the container
// has them.
func TestPipesOfARepeatedStartAreHeld(t *testing.T) {
	c := newCollected(t)
	must.NoError(t, c.marks.of("task").set())
	stdout, stderr := c.read(c.cfg.StdoutPath), c.read(c.cfg.StderrPath)
	o := c.open()
	must.True(t, c.hasWriter(stdout))
	must.True(t, c.hasWriter(stderr))
	o.Release()
	must.False(t, c.hasWriter(stdout))
	must.False(t, c.hasWriter(stderr))

	must.NoError(t, stderr.Close())
	c.open().Release() // with one reader
	c.cfg.StderrPath = ""
	o = c.open() // with one stream
	must.True(t, c.hasWriter(stdout))
	o.Release()
}

// Where its output goes depends on whether the start is repeated, whether the pipes were
// open all the time, and on the terminal, which has no file.
func TestOutputOfARepeatedStart(t *testing.T) {
	for name, row := range map[string]struct{ repeated, alive, terminal, logs bool }{
		"the first":             {},
		"the first, a terminal": {terminal: true},
		"pipes were open":       {repeated: true, alive: true},
		"pipes were closed":     {repeated: true, logs: true},
		"on a terminal":         {repeated: true, terminal: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollected(t)
			must.NoError(t, os.WriteFile(filepath.Join(c.logs, "web.stderr.2"), []byte("before\n"), 0o644))
			if row.repeated {
				must.NoError(t, c.marks.of("task").set())
			}
			o := c.open()
			defer o.Release()
			o.PipesAlive = row.alive
			c.stdio(o, row.terminal, func(out, err string) {
				if !row.logs {
					c.same(c.cfg.StdoutPath, out)
					c.same(c.cfg.StderrPath, err)
					return
				}
				c.same(filepath.Join(c.logs, "web.stdout.0"), out)
				c.same(filepath.Join(c.logs, "web.stderr.2"), err)
				text, failed := os.ReadFile(err)
				must.NoError(t, failed)
				must.Eq(t, "before\n", string(text))
			})
		})
	}
}

// Where Nomad does not collect the output, there are no logs to go on in.
func TestOutputThatNobodyCollects(t *testing.T) {
	c := newCollected(t)
	elsewhere := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(elsewhere, "file.fifo"), nil, 0o600))
	must.NoError(t, unix.Mkfifo(filepath.Join(elsewhere, ".web.stdout.fifo"), 0o600))
	must.NoError(t, unix.Mkfifo(filepath.Join(c.logs, "named"), 0o600))
	must.NoError(t, c.marks.of("task").set())
	for _, path := range []string{
		os.DevNull, filepath.Join(elsewhere, "file.fifo"), filepath.Join(elsewhere, ".web.stdout.fifo"),
		filepath.Join(c.logs, "named"),
	} {
		c.cfg.StdoutPath, c.cfg.StderrPath = path, ""
		o := c.open()
		c.stdio(o, false, func(out, _ string) { c.same(path, out) })
		o.Release()
	}
}

// What is not Nomad's pipe is refused, and nothing stays open.
func TestOutputsThatAreRefused(t *testing.T) {
	c := newCollected(t)
	must.NoError(t, os.WriteFile(filepath.Join(c.logs, "file"), nil, 0o600))
	must.NoError(t, os.Symlink(".web.stdout.fifo", filepath.Join(c.logs, "link")))
	must.NoError(t, os.Symlink(c.logs, filepath.Join(c.cfg.AllocDir, "links")))
	good := *c.cfg
	open := 0
	for round := range 3 { // what is opened once for all is open after the first
		for path, says := range map[string]string{
			filepath.Join(c.logs, "file"):             `open the task's stderr: "file" is not a pipe`,
			filepath.Join(c.logs, "link"):             "open the task's stderr: ",
			filepath.Join(c.logs, "none"):             "no such file",
			filepath.Join(c.cfg.AllocDir, "no", "f"):  "no such file",
			filepath.Join(c.cfg.AllocDir, "links/.f"): "open the task's stderr: ",
			c.logs:                     "is not a pipe",
			t.TempDir():                rooted.ErrKind.Error(),
			"/dev/zero":                rooted.ErrKind.Error(),
			t.TempDir() + "/nowhere":   "no such file",
			"relative/to/no/directory": "no such file",
		} {
			*c.cfg = good
			c.cfg.StderrPath = path
			_, err := Open(c.cfg, c.marks)
			must.ErrorContains(t, err, says, must.Sprint(path))
		}
		*c.cfg = good
		c.cfg.AllocDir = filepath.Join(c.cfg.AllocDir, "gone")
		c.cfg.StdoutPath = filepath.Join(c.cfg.AllocDir, "logs", "f")
		_, err := Open(c.cfg, c.marks)
		must.ErrorContains(t, err, "open the task's stdout: ")
		now := openFiles(t)
		if round > 0 {
			must.Eq(t, open, now)
		}
		open = now
	}
}

// What was opened for a start is closed with it, whatever became of its output.
func TestNothingOfAnOutputStaysOpen(t *testing.T) {
	c := newCollected(t)
	must.NoError(t, c.marks.of("task").set())
	c.read(c.cfg.StdoutPath)
	open := 0
	for round := range 3 { // what is opened once for all is open after the first
		o := c.open()
		c.stdio(o, false, func(string, string) {})
		o.Release()
		now := openFiles(t)
		if round > 0 {
			must.Eq(t, open, now)
		}
		open = now
	}
}

// Logs that cannot be gone on in are told; no container starts whose output is lost.
func TestLogsThatCannotBeGoneOnIn(t *testing.T) {
	for name, row := range map[string]struct {
		spoil func(c *collected) error
		says  string
	}{
		"a directory": {func(c *collected) error { return os.Mkdir(filepath.Join(c.logs, "web.stdout.7"), 0o700) }, `open the task's log "web.stdout.7": `},
		"a link":      {func(c *collected) error { return os.Symlink("/etc/passwd", filepath.Join(c.logs, "web.stdout.8")) }, `open the task's log "web.stdout.8": `},
		"too many": {func(c *collected) error {
			for i := range maxLogFiles {
				if err := os.WriteFile(filepath.Join(c.logs, strconv.Itoa(i)), nil, 0o600); err != nil {
					return err
				}
			}
			return nil
		}, "look for the task's logs: "},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollected(t)
			must.NoError(t, c.marks.of("task").set())
			must.NoError(t, row.spoil(c))
			o := c.open()
			defer o.Release()
			_, err := o.Stdio(c.stage(), false)
			must.ErrorContains(t, err, row.says)
		})
	}
	c := newCollected(t)
	o := c.open()
	defer o.Release()
	stage := c.stage()
	_, err := stage.Write("stderr", nil)
	must.NoError(t, err)
	must.NoError(t, os.Mkdir(filepath.Join(stage.Dir(), "stdout"), 0o700))
	_, err = o.Stdio(stage, false)
	must.ErrorContains(t, err, "show stdout")
}

// The directory of logs may be gone by the time that they are looked for.
func TestNewestLogOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(path, nil, 0o600))
	file, err := rooted.OpenHost(path)
	must.NoError(t, err)
	_, err = newestLog(file, "web.")
	must.Error(t, err)
	must.False(t, err == io.EOF)
	must.NoError(t, file.Close())
	_, err = newestLog(file, "web.")
	must.Error(t, err)
}
