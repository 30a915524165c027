// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A task with a writable mount of the directory puts links to a file of the host where the
// gate has just made its socket or its pipe: the file keeps its mode.
func TestALinkInTheGatesPlaceChangesNothingOfTheHost(t *testing.T) {
	host := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(host, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(dir string) error{
		controlSocket + ".new": func(dir string) error {
			listener, err := openGate(dir)
			if err == nil {
				err = listener.Close()
			}
			return err
		},
		logPipe: func(dir string) error {
			pipe, err := openLogPipe(filepath.Join(dir, logPipe))
			if err == nil {
				err = pipe.Close()
			}
			return err
		},
	} {
		dir := t.TempDir()
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
			_ = do(dir) // who is disturbed fails, and is tried again
			if info, err := os.Stat(host); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: the host's file is %v, %v", name, info.Mode(), err)
				break
			}
		}
		close(stop)
		attacker.Wait()
	}
}

// What is not as it was made is refused.
func TestSetModeOfWhatWasReplaced(t *testing.T) {
	dir := t.TempDir()
	host, link, second := filepath.Join(dir, "host"), filepath.Join(dir, "link"), filepath.Join(dir, "second")
	for _, err := range []error{unix.Mkfifo(host, 0o600), os.Symlink(host, link), os.Link(host, second)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{link, second} {
		if file, err := setMode(path, unix.S_IFIFO, 0o622); err == nil {
			t.Errorf("%s was taken", path)
			file.Close()
		}
	}
	if info, err := os.Stat(host); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
