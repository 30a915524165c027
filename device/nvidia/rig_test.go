// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

// The test binary is the hook of the specs that it generates.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == nvidia.HookCommand {
		if err := nvidia.Hook(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// rig is a backend on a simulated machine.
type rig struct {
	*nvidia.Backend
	t       *testing.T
	dir     string
	machine *sim.Machine
}

// No answer of the simulator takes so long, however busy the machine is; timeout is
// for rigs with a call that hangs.
const (
	forever = time.Minute
	timeout = 2 * time.Second
)

func newRig(t *testing.T, gpus string) *rig {
	t.Helper()
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"test\" {}\n"+gpus))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: tmpfs.Dir(t)}
	if r.machine, err = sim.New(topology, sim.Options{Dir: r.dir, BootID: "boot", Report: func(err error) { t.Error(err) }}); err != nil {
		t.Fatal(err)
	}
	r.Backend = nvidia.New(r.machine, forever)
	t.Cleanup(func() { r.Close() })
	return r
}

// impatient gives the rig another backend, which gives calls up.
func (r *rig) impatient() {
	r.Close()
	r.Backend = nvidia.New(r.machine, timeout)
}

func (r *rig) uuid(i int) string { return r.machine.Topology().UUID(i) }

// happen changes a GPU's condition.
func (r *rig) happen(i int, change func(*sim.Condition)) {
	r.t.Helper()
	if err := sim.Update(r.dir, r.uuid(i), change); err != nil {
		r.t.Fatal(err)
	}
	// Two changes in one tick of the file system's clock must not look alike.
	stamp := time.Now().Add(time.Duration(changes) * time.Second)
	changes++
	if err := os.Chtimes(filepath.Join(r.dir, "control.json"), stamp, stamp); err != nil {
		r.t.Fatal(err)
	}
}

var changes int

// watch listens to the first GPUs until the test ends.
func (r *rig) watch(gpus int) <-chan hardware.Event {
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan hardware.Event), make(chan error, 1)
	var uuids []string
	for i := range gpus {
		uuids = append(uuids, r.uuid(i))
	}
	go func() {
		ended <- r.Watch(ctx, uuids, func(e hardware.Event) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		})
	}()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Errorf("the watch ended with %v", err)
		}
	})
	return events
}

const h100x3 = `
gpu {
	model = "H100"
	count = 3
}`
