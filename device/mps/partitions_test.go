// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (b *bench) partitioned() Spec {
	s := b.spec()
	s.Static = true
	return s
}

// Where the control program lacks static partitions, nothing is offered, and the reason
// says what to do. NVIDIA's own programs of four branches do.
func TestStaticPartitionsAreRefusedWhereTheBranchLacksThem(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.partitioned()})
		s := b.until("it is refused", reason("does not start with static partitions (-S)"))
		if !strings.Contains(s.Action, "CUDA 13.1 or newer") || !s.Settled {
			t.Errorf("status is %+v", s)
		}
		if left := b.control(device).running(roleDaemon); len(left) > 1 { // one that is about to find out
			t.Errorf("%v run", left)
		}
	})
}

func TestStaticPartitions(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, partitioner, false)
	b.Want([]Spec{b.partitioned()})
	first := b.until("the daemon is ready", ready)
	if want := (Partitioning{Static: true, Chunks: 16, Multiprocessors: 132}); first.Partitioning != want || !first.MultiUser {
		t.Errorf("the daemon divides %+v, users %t", first.Partitioning, first.MultiUser)
	}
	if percent := b.ask("get_default_active_thread_percentage"); percent != "100.0" {
		t.Errorf("beside partitions the percentage is %s", percent)
	}
	c := b.asking()
	id, err := c.AddPartition(t.Context(), device, 4)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	b.start()
	b.Want([]Spec{b.partitioned()})
	second := b.until("it is adopted", ready)
	if second.PID != first.PID || second.Generation != first.Generation || second.Partitioning != first.Partitioning {
		t.Errorf("%+v was adopted as %+v", first, second)
	}
	if p, err := c.Partitions(t.Context()); err != nil || len(p.All) != 1 || p.All[0].ID != id {
		t.Errorf("the partitions are %+v, %v", p, err)
	}
	// Without the server the partitions are gone, and the tasks are told as of a daemon's end.
	if err := unix.Kill(b.server(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	third := b.until("another is ready", func(s Status) bool { return s.Ready && s.Generation > second.Generation })
	if !strings.Contains(third.LastEnd, "partitions") {
		t.Errorf("the daemon before ended because %q", third.LastEnd)
	}
	b.oneOfEach()
}

// So it is when the server ends while no plugin is there.
func TestPartitionsThatAreLostUnseen(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, partitioner, false)
	b.Want([]Spec{b.partitioned()})
	first := b.until("the daemon is ready", ready)
	b.Close()
	if err := unix.Kill(b.server(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.Want([]Spec{b.partitioned()})
	b.until("another is ready", func(s Status) bool { return s.Ready && s.Generation > first.Generation })
	b.oneOfEach()
}

// A daemon that divides the device in another way serves on while tasks may be there.
func TestPartitioningChangesWhenNoTaskIsThere(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, partitioner, false)
	for _, static := range []bool{false, true, false} {
		want := b.spec()
		want.Static = static
		before := b.Status(device)
		b.Close()
		b.start()
		b.Want([]Spec{want})
		s := b.until("it is ready", ready)
		if before.Generation > 0 && (s.Generation != before.Generation || s.Partitioning.Static == static) {
			t.Errorf("with tasks it was replaced: %+v", s)
		}
		b.until("no task is there", func(s Status) bool {
			want.EmptyAt = time.Now()
			b.Want([]Spec{want})
			return s.Ready && s.Partitioning.Static == static
		})
		b.oneOfEach()
	}
}
