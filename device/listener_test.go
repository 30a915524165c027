// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// watchedDevices notes what is listened to, and fails when it is told to.
type watchedDevices struct {
	fleet.Observer
	mu    sync.Mutex
	began []string
	going int
	fail  chan error
}

// seen is what was begun so far, and how much of it goes on.
func (w *watchedDevices) seen() (began []string, going int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.began), w.going
}

func (w *watchedDevices) begin(uuids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = append(w.began, strings.Join(uuids, " "))
	w.going++
}

func (w *watchedDevices) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.going--
}

func (w *watchedDevices) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	w.begin(uuids)
	defer w.end()
	emit(hardware.Event{UUID: uuids[0]})
	select {
	case err := <-w.fail:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The devices that are there are listened to, once each; when they change, or listening
// fails, it begins anew, and the reconciler is woken, since something may have been missed.
func TestListeningFollowsTheDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchedDevices{fail: make(chan error)}
		wake := newTrigger()
		l := newEventListener(hclog.NewNullLogger(), w, wake.pull)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		heard := []string{}
		listen := func(uuids ...string) {
			var m hardware.Machine
			for _, uuid := range uuids {
				m.GPUs = append(m.GPUs, hardware.GPU{UUID: uuid})
			}
			l.watch(ctx, m)
			for synctest.Wait(); ; synctest.Wait() {
				select {
				case e := <-l.events:
					heard = append(heard, e.UUID)
					continue
				default:
				}
				break
			}
		}
		expect := func(what string, began []string, going int) {
			t.Helper()
			if begun, goes := w.seen(); !slices.Equal(begun, began) || goes != going || len(heard) != len(began) {
				t.Errorf("%s: begun for %q, %d going, heard %v", what, begun, goes, heard)
			}
		}
		listen()
		expect("without devices", nil, 0)
		listen("GPU-b", "GPU-a")
		listen("GPU-a", "GPU-b")
		expect("two in any order", []string{"GPU-a GPU-b"}, 1)
		listen("GPU-a")
		expect("one is gone", []string{"GPU-a GPU-b", "GPU-a"}, 1)
		select {
		case <-wake:
			t.Error("woken without a failure")
		default:
		}
		w.fail <- errors.New("the driver went away")
		synctest.Wait()
		if _, going := w.seen(); going != 0 || len(wake) != 1 {
			t.Errorf("after a failure %d are going, %d wake-ups", going, len(wake))
		}
		time.Sleep(listenPause - 1)
		listen("GPU-a")
		expect("before the pause is over", []string{"GPU-a GPU-b", "GPU-a"}, 0)
		time.Sleep(time.Nanosecond)
		listen("GPU-a")
		expect("after the pause", []string{"GPU-a GPU-b", "GPU-a", "GPU-a"}, 1)
		listen()
		expect("all are gone", []string{"GPU-a GPU-b", "GPU-a", "GPU-a"}, 0)
		listen("GPU-a")
		l.stop()
		if _, going := w.seen(); going != 0 {
			t.Error("it goes on after the end")
		}
	})
}

// A failure is said when it begins, changes and ends, each once.
func TestFailuresAreSaidOnce(t *testing.T) {
	var out bytes.Buffer
	l := newOnceLogger(hclog.New(&hclog.LoggerOptions{Output: &out, DisableTime: true}))
	for _, step := range []struct {
		what string
		err  error
		says string
	}{
		{"a", nil, ""},
		{"a", errors.New("no"), "[ERROR] cannot go on with this, trying again: what=a error=no"},
		{"a", errors.New("no"), ""},
		{"b", errors.New("no"), "what=b error=no"},
		{"a", errors.New("other"), "what=a error=other"},
		{"a", nil, "[INFO]  recovered: from=a"},
		{"a", nil, ""},
		{"b", fmt.Errorf("stopped: %w", context.Canceled), "recovered: from=b"}, // the end of the plugin is no failure
		{"c", context.Canceled, ""},
	} {
		out.Reset()
		l.report(step.what, step.err)
		if got := strings.TrimSpace(out.String()); (got == "") != (step.says == "") || !strings.Contains(got, step.says) {
			t.Errorf("%s, %v: %q, want %q", step.what, step.err, got, step.says)
		}
	}
}

// What an operator says of a device is kept by its UUID, and nothing else is a mark.
func TestFlagsOfOperators(t *testing.T) {
	dir := t.TempDir()
	f := registry.OpenCordons(dir)
	if all, err := f.All(); err != nil || len(all) != 0 || f.Has("GPU-1") || f.Remove("GPU-1") != nil {
		t.Errorf("at first: %v, %v", all, err)
	}
	if err := errors.Join(f.Add("GPU-1", "new fan"), f.Add("MIG-2", ""), f.Add("GPU-1", "newer fan")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "cordons", ".GPU-3.tmp"), "half")
	if err := os.Mkdir(filepath.Join(dir, "cordons", "GPU-4"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, err := f.All()
	if err != nil || fmt.Sprint(all) != "map[GPU-1:newer fan MIG-2:]" || !f.Has("GPU-1") || f.Has("GPU-3") {
		t.Errorf("marks are %v, %v", all, err)
	}
	if err := f.Remove("GPU-1"); err != nil || f.Has("GPU-1") || !f.Has("MIG-2") {
		t.Errorf("removed: %v", err)
	}
	for _, bad := range []string{"", "0", "GPU-1/../2", "GPU-.", "../GPU-1", "gpu-1"} {
		if f.Add(bad, "") == nil || f.Remove(bad) == nil || f.Has(bad) {
			t.Errorf("%q is a UUID", bad)
		}
	}
	for a, b := range map[registry.Flags]registry.Flags{registry.OpenCordons(dir): registry.OpenReleases(dir), registry.OpenForgotten(dir): registry.OpenCordons(dir), registry.OpenReleases(dir): registry.OpenForgotten(dir)} {
		if a == b {
			t.Errorf("two kinds of marks lie in %v", a)
		}
	}
	writeFile(t, filepath.Join(dir, "file"), "")
	if _, err := registry.OpenCordons(filepath.Join(dir, "file")).All(); err == nil {
		t.Error("marks that cannot be listed are none")
	}
}
