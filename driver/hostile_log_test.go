// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/output"
)

// The pipes of Nomad's log collector lie where tasks of other drivers can write:
// what is in their place must be a pipe, or nothing starts.
func TestHostileLogPipes(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		inPlace := map[string]func(path string) error{
			"a link to a file":      func(path string) error { return os.Symlink(host.file(), path) },
			"a link to a pipe":      func(path string) error { return os.Symlink(path+".away", path) },
			"a file":                func(path string) error { return os.WriteFile(path, nil, 0o666) },
			"a directory":           func(path string) error { return os.Mkdir(path, 0o777) },
			"a device":              func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
			"a hard link to a file": func(path string) error { return os.Link(host.file(), path) },
			"nothing":               func(string) error { return nil },
		}
		for name, put := range inPlace {
			for _, stream := range []string{"stdout", "stderr"} {
				cfg := e.quietTask(defaultTaskConfig("sh", "-c", "echo evil; echo evil >&2"))
				for stream, path := range map[string]*string{"stdout": &cfg.StdoutPath, "stderr": &cfg.StderrPath} {
					*path = filepath.Join(cfg.TaskDir().LogDir, ".web."+stream+".fifo")
					must.NoError(t, unix.Mkfifo(*path, 0o600))
				}
				path := filepath.Join(cfg.TaskDir().LogDir, ".web."+stream+".fifo")
				must.NoError(t, os.Rename(path, path+".away"))
				must.NoError(t, put(path), must.Sprint(name))
				e.refused(cfg, "open the task's "+stream)
				host.unharmed("")
			}
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// A start that is repeated writes to the log file itself, which must be one.
func TestHostileLogFiles(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		host := newCanary(t, e.dir)
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", "echo evil"))
		for stream, path := range map[string]*string{"stdout": &cfg.StdoutPath, "stderr": &cfg.StderrPath} {
			*path = filepath.Join(cfg.TaskDir().LogDir, ".web."+stream+".fifo")
			must.NoError(t, unix.Mkfifo(*path, 0o600))
		}
		begun, err := output.Open(cfg, outputMarks(e.driver.settings))
		must.NoError(t, err)
		must.NoError(t, begun.Opening())
		begun.Release()
		must.NoError(t, os.Symlink(host.file(), filepath.Join(cfg.TaskDir().LogDir, "web.stdout.7")))
		e.refused(cfg, `open the task's log "web.stdout.7"`)
		host.unharmed("")
		must.Eq(t, nil, e.leftovers())
	})
}

// No container can put anything into the place of another's pipes.
func TestLogsAreReadOnlyInContainers(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, _ := e.run(defaultTaskConfig("sh", "-c", `
			touch /alloc/logs/x || echo no new file
			rm -rf /alloc/logs; mv /alloc/logs /alloc/away || echo no other place
			ln -sfn /etc /alloc/logs; umount /alloc/logs || echo no unmount
			ls -d /alloc/logs; touch /alloc/data/x && echo data can be written`))
		must.Eq(t, []string{"no new file", "no other place", "no unmount", "/alloc/logs", "data can be written"}, lines(out))
	})
}
