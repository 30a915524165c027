// SPDX-License-Identifier: MPL-2.0

package record_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// A Variable of Nomad holds 64 KiB, and a decision about many allocs or groups is
// larger: it was planned, and then could not be recorded.
func TestALargeJobIsRecorded(t *testing.T) {
	machines := make([]*nomad.Node, 40)
	for i := range machines {
		machines[i] = servicetest.Machine(fmt.Sprintf("m%02d", i), 4)
	}
	many := servicetest.Ask("many", "1G", 2000)
	many.CPUMHz, many.MemoryMiB = 10, 10
	var groups []admit.Ask
	for i := range 200 {
		a := servicetest.Ask("groups", "1G", 1)
		a.Group = fmt.Sprintf("group-%03d", i)
		groups = append(groups, a)
	}
	for name, asks := range map[string][]admit.Ask{"2,000 allocs": {many}, "200 groups": groups} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", machines...)
			d, err := b.Decide(t.Context(), asks, false)
			if err != nil {
				t.Fatal(err)
			}
			b.Settle(t.Context(), asks, d, true)
			first := len(b.Store.Items)
			if first < 2 {
				t.Fatalf("%d Variables", first)
			}
			key := nomad.JobKey{Namespace: "default", ID: asks[0].JobID}
			read, err := record.Read(t.Context(), b.Store, key)
			if err != nil || len(read.Groups) != len(asks) || !reflect.DeepEqual(read.Groups[asks[0].Group].Assumed, b.Record(key).Groups[asks[0].Group].Assumed) {
				t.Fatalf("read back %d groups, %v", len(read.Groups), err)
			}
			if again, err := b.Decide(t.Context(), asks, false); err != nil || !reflect.DeepEqual(again, d) {
				t.Errorf("decided again: %v", err)
			}
			if len(b.Store.Items) != first {
				t.Errorf("%d Variables after the second writing, %d after the first", len(b.Store.Items), first)
			}
			next := servicetest.After(t, b, time.Second, "", machines...)
			head := ""
			for path := range b.Store.Items {
				if rest, found := strings.CutPrefix(path, "nomad-gpu/decisions/"); found && !strings.Contains(rest, "/") {
					head = path
				}
			}
			part := head + "/LEFT/0"
			if _, err := b.Store.Put(t.Context(), nomad.Item{Path: part, Values: map[string]string{"part": "x"}}); err != nil {
				t.Fatal(err)
			}
			if err := next.Load(t.Context()); err != nil || next.Record(key) == nil || len(next.Cluster(t).Events) != 0 {
				t.Fatalf("%+v, %v", next.Cluster(t).Events, err)
			}
			if b.Store.Items[part].Index != 0 {
				t.Error("a part that no decision names is kept")
			}
			for _, a := range asks {
				next.Register(a)
			}
			next.Clock.At = next.Clock.At.Add(time.Hour)
			next.State.Apply([]nomad.Change{{JobGone: &key}}, next.Index+1)
			if err := next.Purge(t.Context()); err != nil || len(b.Store.Items) != 0 {
				t.Errorf("%d Variables are left of a job that is gone, %v", len(b.Store.Items), err)
			}
		})
	}
}

// Records of this release are read by the one before, as long as they are small.
func TestASmallRecordLiesInOneVariable(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	b.Submit(t, servicetest.Ask("job", "1G", 1))
	for path, item := range b.Store.Items {
		if strings.Count(path, "/") > 2 || !strings.HasPrefix(item.Values["record"], `{"v":1,`) {
			t.Errorf("%s: %v", path, item.Values)
		}
	}
}
