// SPDX-License-Identifier: MPL-2.0

package leases

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/locktest"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

func openState(t *testing.T) (*statedir.Dir, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	dir, err := statedir.Open(path, "boot")
	must.NoError(t, err)
	return dir, path
}

const gpuA = "GPU-aaaaaaaa-0000-0000-0000-000000000000"

func leaseOf(id, container string, milli int64, slices ...int) gpu.Lease {
	return gpu.Lease{ID: id, Container: container, Phase: gpu.PhaseRunning, StartedAt: time.Unix(1000, 0).UTC(),
		Holdings: []gpu.Holding{{UUID: gpuA, Slices: slices, Share: gpu.Share{MemoryMiB: 1024, GuaranteeMilli: milli}}}}
}

// A task that ends while it asks for another share does not get its lease back.
func TestAShareIsResizedOnlyWhileItsTaskRuns(t *testing.T) {
	dir, _ := openState(t)
	book := &Book{}
	book.Open(dir)
	lease := leaseOf("a", "c1", 600, 1)
	less := leaseOf("a", "c1", 300, 1)
	must.ErrorContains(t, book.Resize(less), "the task is ending", must.Sprint("it has no lease"))
	must.NoError(t, book.Claim(lease))
	must.ErrorContains(t, book.Resize(leaseOf("a", "c0", 300, 1)), "the task is ending", must.Sprint("an earlier container of it"))
	must.NoError(t, book.Resize(less))
	is, err := dir.Lease("a")
	must.NoError(t, err)
	must.Eq(t, 300, is.Holdings[0].GuaranteeMilli)
	must.NoError(t, book.Claim(leaseOf("b", "c2", 700, 2)))
	must.ErrorContains(t, book.Resize(lease), "resize: ", must.Sprint("others hold the rest"))
	must.NoError(t, book.End(less, time.Now()))
	must.ErrorContains(t, book.Resize(less), "the task is ending")
	is, err = dir.Lease("a")
	must.NoError(t, err)
	must.False(t, is.Live())
}

func TestLeasesAreClaimedOnce(t *testing.T) {
	dir, path := openState(t)
	book := &Book{}
	must.NoError(t, book.Expire(time.Now())) // before there is a directory
	book.Open(dir)
	first, second := leaseOf("a", "c1", 600, 1), leaseOf("b", "c2", 400, 2)
	must.NoError(t, book.Claim(gpu.Lease{ID: "none"}))
	must.NoError(t, book.Write(gpu.Lease{ID: "none"}))
	must.NoError(t, book.End(gpu.Lease{ID: "none"}, time.Now()))
	_, err := dir.Lease("none")
	must.ErrorIs(t, err, statedir.ErrNotFound)

	must.NoError(t, book.Claim(first))
	must.ErrorContains(t, book.Claim(leaseOf("c", "c3", 401, 3)), "Nomad counts slices, not compute")
	must.ErrorContains(t, book.Claim(leaseOf("c", "c3", 100, 1)), "Nomad tries again")
	must.NoError(t, book.Claim(second))

	// Those that are being started are not started yet.
	started, err := book.Started()
	must.NoError(t, err)
	must.SliceEmpty(t, started)
	book.StartEnded(first)
	started, err = book.Started()
	must.NoError(t, err)
	must.Len(t, 1, started)
	must.Eq(t, "a", started[0].ID)
	book.StartEnded(second)

	// The end of an earlier container is not that of the task.
	ended := time.Now().UTC().Truncate(time.Second)
	earlier := first
	earlier.Container = "c0"
	must.NoError(t, book.End(earlier, ended))
	is, err := dir.Lease("a")
	must.NoError(t, err)
	must.True(t, is.Live())
	must.NoError(t, book.End(first, ended))
	is, err = dir.Lease("a")
	must.NoError(t, err)
	must.False(t, is.Live())
	must.True(t, is.EndedAt.Equal(ended))
	must.NoError(t, book.Claim(leaseOf("c", "c3", 600, 1)), must.Sprint("what has ended holds nothing"))

	must.NoError(t, book.Expire(ended.Add(retention-time.Second)))
	_, err = dir.Lease("a")
	must.NoError(t, err)
	must.NoError(t, book.Expire(ended.Add(retention)))
	_, err = dir.Lease("a")
	must.ErrorIs(t, err, statedir.ErrNotFound)
	_, err = dir.Lease("b")
	must.NoError(t, err)
	must.NoError(t, book.Write(leaseOf("d", "c4", 1000, 4)), must.Sprint("what runs already needs no permission"))

	// One that cannot be read may hold what is asked for.
	must.NoError(t, os.WriteFile(filepath.Join(path, "leases", "broken.json"), []byte("{"), 0o600))
	must.ErrorContains(t, book.Claim(leaseOf("e", "c5", 0, 5)), "read leases")
	_, err = book.Started()
	must.Error(t, err)
	must.Error(t, book.Expire(time.Now()))
}

// The host must have room for all tasks with seats, so that each can leave.
func TestSeatsForWhichTheHostHasNoMemory(t *testing.T) {
	dir, err := statedir.Open(t.TempDir(), "boot")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.WriteGPU(gpu.GPUState{UUID: "GPU-1", Mode: gpu.ModeShared, Sharing: gpu.SharingSuspend, Seats: &gpu.SeatRules{HostMemoryMiB: 100}}); err != nil {
		t.Fatal(err)
	}
	b := Book{}
	b.Open(dir)
	lease := func(id string, n int, mib int64) gpu.Lease {
		return gpu.Lease{ID: id, Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: "GPU-1", Mode: gpu.ModeShared, Slices: []int{n}, SeatMiB: mib}}}
	}
	if err := b.Claim(lease("a", 0, 60)); err != nil {
		t.Fatal(err)
	}
	if err := b.Claim(lease("b", 1, 41)); err == nil || !strings.Contains(err.Error(), "60M of the 100M that suspend.host_memory allows are promised") {
		t.Errorf("got %v", err)
	}
	if err := b.Claim(lease("b", 1, 40)); err != nil {
		t.Error(err)
	}
	if err := b.Claim(lease("c", 2, 101)); err == nil || !strings.Contains(err.Error(), "101M of the host's memory while it is suspended, more than the 100M") {
		t.Errorf("a task that can never be suspended here is told %v", err)
	}
}

// Nothing is claimed or resized by leases that cannot be read or written.
func TestBooksThatCannotBeRead(t *testing.T) {
	dir, path := openState(t)
	book := &Book{}
	book.Open(dir)
	lease := gpu.Lease{ID: "mine", Container: "box", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: gpuA, Mode: gpu.ModeShared, Slices: []int{0}, SeatMiB: 1}}}
	must.ErrorContains(t, book.Claim(lease), "the device plugin does not say how its tasks step aside for each other")
	// Where it knows the GPU and says nothing of seats, there is none.
	must.NoError(t, dir.WriteGPU(gpu.GPUState{UUID: gpuA}))
	must.ErrorContains(t, book.Claim(lease), "does not say how its tasks step aside")
	spoiled := filepath.Join(path, "leases")
	must.NoError(t, os.WriteFile(filepath.Join(spoiled, "cut.json"), []byte("{"), 0o600))
	must.ErrorContains(t, book.Claim(lease), "read leases: ")
	must.ErrorContains(t, book.Resize(lease), "resize: the node's leases cannot be read")
	must.Error(t, book.Expire(time.Now()))

	must.NoError(t, os.RemoveAll(spoiled))
	lease.Holdings[0].SeatMiB = 0
	must.Error(t, book.Claim(lease), must.Sprint("a lease that is not written holds nothing"))
	must.False(t, book.starting[lease.ID])
	must.Error(t, book.Write(lease))
	must.Error(t, book.End(lease, time.Now()))
}

// A book is read and written under its lock. Without that, two tasks get the last of a GPU.
func TestABookIsLocked(t *testing.T) {
	dir, _ := openState(t)
	book := &Book{}
	book.Open(dir)
	lease := leaseOf("mine", "box", 100, 1)
	locktest.MustWait(t, &book.mu,
		func() { book.Open(dir) }, func() { _ = book.Claim(lease) }, func() { book.StartEnded(lease) }, func() { _ = book.Write(lease) },
		func() { _ = book.Resize(lease) }, func() { _ = book.End(lease, time.Now()) }, func() { _ = book.Expire(time.Now()) }, func() { _, _ = book.Started() })
}
