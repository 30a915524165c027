// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A task with a writable mount of the directory puts links to a file of the host where the
// gate is about to show its socket or its pipe: the file keeps its mode.
func TestALinkInTheGatesPlaceChangesNothingOfTheHost(t *testing.T) {
	host := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(host, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{controlSocket, controlSocket + ".new", logPipe, logPipe + ".new"} {
		dir := t.TempDir()
		at := gatePlace{shown: dir, kept: t.TempDir()}
		listener, err := at.openGate()
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		pipe, err := at.openLogPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer pipe.Close()
		stop := make(chan struct{})
		var attacker sync.WaitGroup
		attacker.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_ = os.Symlink(host, filepath.Join(dir, "link"))
				_ = os.Rename(filepath.Join(dir, "link"), filepath.Join(dir, name))
			}
		})
		for range 2000 {
			_, _ = at.restore() // who is disturbed fails, and tries again
			if info, err := os.Stat(host); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: the host's file is %v, %v", name, info.Mode(), err)
				break
			}
		}
		close(stop)
		attacker.Wait()
		if _, err := at.restore(); err != nil {
			t.Errorf("%s: the gate is not shown again: %v", name, err)
		}
	}
}

// What a task with such a mount does to the directory is undone by the gate, at once and without
// another gate: tasks of our driver have mounts of its files.
func TestTheGateKeepsItsPlace(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Close()
		b.answer = time.Hour // no question of the plugin's finds it
		b.start()
		s := b.wantReady()
		gates := b.control(device).running(roleGate)
		var before unix.Stat_t
		if err := unix.Stat(gateOf(s), &before); err != nil {
			t.Fatal(err)
		}
		log, kept := filepath.Join(s.PipeDir, logPipe), unix.Stat_t{}
		if err := unix.Lstat(filepath.Join(s.GateDir, controlSocket), &kept); err != nil || kept.Ino != before.Ino {
			t.Errorf("the gate's own socket is in %q: %v", s.GateDir, err)
		}
		for name, attack := range map[string]func() error{
			"removed":            func() error { return os.Remove(gateOf(s)) },
			"replaced by a file": func() error { return errors.Join(os.Remove(gateOf(s)), os.WriteFile(gateOf(s), nil, 0o600)) },
			"replaced by folders": func() error {
				return errors.Join(os.Remove(gateOf(s)), os.MkdirAll(filepath.Join(gateOf(s), "a/b"), 0o700))
			},
			"moved":             func() error { return os.Rename(gateOf(s), gateOf(s)+".old") },
			"locked":            func() error { return os.Chmod(gateOf(s), 0) },
			"its folder locked": func() error { return os.Chmod(s.PipeDir, 0) },
			"the log pipe":      func() error { return errors.Join(os.Remove(log), os.Symlink("/etc/passwd", log)) },
		} {
			_ = attack() // the gate may be quicker
			good := func() bool {
				var now, folder, pipe unix.Stat_t
				return unix.Lstat(gateOf(s), &now) == nil && now.Ino == before.Ino && now.Mode == before.Mode &&
					unix.Lstat(s.PipeDir, &folder) == nil && folder.Mode&0o777 == 0o755 &&
					unix.Lstat(log, &pipe) == nil && pipe.Mode == unix.S_IFIFO|0o622
			}
			for limit := time.Now().Add(time.Minute); !good(); time.Sleep(time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatalf("%s: the directory stays as the task made it", name)
				}
			}
			if err := becomeClient(gateOf(s)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if now := b.control(device).running(roleGate); !slices.Equal(now, gates) {
			t.Errorf("the gates were %v and are %v", gates, now)
		}
	})
}
