// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// answer greets whoever connects.
func answer(listener net.Listener) { answerWith(listener, "hello from the daemon") }

func answerWith(listener net.Listener, hello string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(hello))
		_ = conn.Close()
	}
}

func TestGPUTaskCannotTakeTheDaemonFromItsNeighbors(t *testing.T) {
	dial := goProgram(t, "driver/testdata/dial")
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		pipe := filepath.Join(n.e.dir, "mps", gpuA, "pipe")
		// A daemon's entries: a socket, a pipe and files.
		must.NoError(t, os.Remove(filepath.Join(pipe, "control")))
		listener, err := net.Listen("unix", filepath.Join(pipe, "control"))
		must.NoError(t, err)
		defer listener.Close()
		go answer(listener)
		must.NoError(t, unix.Mkfifo(filepath.Join(pipe, "log"), 0o666))
		for _, name := range []string{"control_lock", "nvidia-cuda-mps-control.pid"} {
			must.NoError(t, os.WriteFile(filepath.Join(pipe, name), []byte("4711"), 0o666))
		}
		attack := `cd /run/nomad-gpu/mps/pipe; echo evil > mine || exit 2
for f in control log control_lock nvidia-cuda-mps-control.pid; do rm -f $f; mv mine $f; ln -sf /etc/passwd $f; done
chmod 0 control log; echo 1 > nvidia-cuda-mps-control.pid; umount control; /local/dial control; echo; echo done; while [ ! -e /local/go ]; do sleep 0.02; done; cat control; ls -l`
		cfg := e.task(defaultTaskConfig("sh", "-c", attack), reserve(gpuA, 0))
		program, err := os.ReadFile(dial)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "dial"), program, 0o755))
		e.start(cfg)
		e.waitForLog(cfg, "done")
		_, err = net.Dial("unix", filepath.Join(pipe, "control"))
		must.NoError(t, err)
		info, err := os.Stat(filepath.Join(pipe, "log"))
		must.NoError(t, err)
		must.Eq(t, fs.ModeNamedPipe, info.Mode().Type())
		must.NotEq(t, 0, info.Mode().Perm())
		for _, name := range []string{"control_lock", "nvidia-cuda-mps-control.pid"} {
			text, err := os.ReadFile(filepath.Join(pipe, name))
			must.NoError(t, err)
			must.Eq(t, "4711", string(text), must.Sprint(name))
		}
		// The device plugin replaces the daemon, once more and once more: a task that runs
		// reaches the new one, and cannot take its place either.
		in := func(script string) string {
			t.Helper()
			result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "cd /run/nomad-gpu/mps/pipe; " + script}, callTimeout)
			must.NoError(t, err)
			return string(result.Stdout)
		}
		for _, hello := range []string{"of the second daemon", "of the third daemon"} {
			must.NoError(t, listener.Close())
			listener, err = net.Listen("unix", filepath.Join(pipe, "control"))
			must.NoError(t, err)
			defer listener.Close()
			go answerWith(listener, hello)
			eventually(t, "the task reaches the new daemon", func() bool {
				return strings.Contains(in("rm -f control; ln -s /local/evil control; /local/dial control"), hello)
			})
			must.StrContains(t, in("mv control gone; ln -sf /local/evil control; chmod 0 control; /local/dial control"), hello)
			conn, err := net.Dial("unix", filepath.Join(pipe, "control"))
			must.NoError(t, err)
			must.NoError(t, conn.Close())
		}
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "go"), nil, 0o644))
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		out := e.logs(cfg, "stdout")
		must.StrContains(t, out, "hello from the daemon", must.Sprint("the task does not reach its daemon"))
		must.Eq(t, nil, e.pipeMounts())

		// A link in the daemon's place leads to nothing of the host's.
		must.NoError(t, os.Remove(filepath.Join(pipe, "control")))
		must.NoError(t, os.Symlink("/etc/hostname", filepath.Join(pipe, "control")))
		_, _, err = e.driver.StartTask(e.quietTask(defaultTaskConfig("true"), reserve(gpuA, 0)))
		must.ErrorContains(t, err, "is not ready: show MPS daemon")
		must.True(t, structs.IsRecoverable(err))
		must.Eq(t, nil, e.pipeMounts())
	})
}

// pipeMounts are the mounts in the directories that containers of this node are shown
// in the place of a daemon's.
func (e *env) pipeMounts() []string {
	e.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(e.t, err)
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+filepath.Join(e.config.StateDir, "pipes")+"/") {
			found = append(found, line)
		}
	}
	return found
}

// TestAnMPSTaskSeesNothingOfTheHostsRun: what it does to its directory is its own
// loss, also as root.
func TestAnMPSTaskSeesNothingOfTheHostsRun(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		pipe := filepath.Join(e.dir, "mps", gpuA, "pipe")
		for _, name := range []string{"control_privileged", "control_lock", "log", "nvidia-cuda-mps-control.pid"} {
			must.NoError(t, os.WriteFile(filepath.Join(pipe, name), []byte("4711"), 0o666))
		}
		before, err := os.Stat(pipe)
		must.NoError(t, err)
		out, _ := e.run(defaultTaskConfig("sh", "-c", `cd /run/nomad-gpu/mps/pipe
cat control_privileged nvidia-cuda-mps-control.pid && echo seen
for f in control log control_lock; do echo overwritten > $f; chmod 0 $f; done
dd if=/dev/zero of=fill bs=1k count=10000; stat -c "filled %s" fill; chmod 0 . && echo locked
i=0; while touch more$i; do i=$((i+1)); [ $i -gt 200 ] && break; done; echo files $i`), reserve(gpuA, 0))
		must.StrNotContains(t, out, "seen")
		must.StrContains(t, out, "filled 6")
		must.StrContains(t, out, "locked")
		must.StrNotContains(t, out, "files 201")
		after, err := os.Stat(pipe)
		must.NoError(t, err)
		must.Eq(t, before.Mode(), after.Mode())
		entries, err := os.ReadDir(pipe)
		must.NoError(t, err)
		must.Len(t, 5, entries)
		for _, name := range []string{"control_lock", "log"} {
			text, err := os.ReadFile(filepath.Join(pipe, name))
			must.NoError(t, err)
			must.Eq(t, "4711", string(text))
		}
		must.Eq(t, nil, e.pipeMounts())
		out, _ = e.run(defaultTaskConfig("ls", "/run/nomad-gpu/mps/pipe"), reserve(gpuA, 1))
		must.Eq(t, []string{"control", "control_lock", "log"}, lines(out))
	})
}
