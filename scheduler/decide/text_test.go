package decide

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// A Variable of Nomad holds 64 KiB, and a decision about many allocs or groups is
// larger: it was planned, and then could not be recorded.
func TestALargeJobIsRecorded(t *testing.T) {
	machines := make([]*nomad.Node, 40)
	for i := range machines {
		machines[i] = machine(fmt.Sprintf("m%02d", i), 4)
	}
	many := ask("many", "1G", 2000)
	many.CPUMHz, many.MemoryMiB = 10, 10
	var groups []admit.Ask
	for i := range 200 {
		a := ask("groups", "1G", 1)
		a.Group = fmt.Sprintf("group-%03d", i)
		groups = append(groups, a)
	}
	for name, asks := range map[string][]admit.Ask{"2,000 allocs": {many}, "200 groups": groups} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "", machines...)
			d, err := b.Decide(t.Context(), asks, false)
			if err != nil {
				t.Fatal(err)
			}
			b.Settle(t.Context(), asks, d, true)
			first := len(b.store.items)
			if first < 2 {
				t.Fatalf("%d Variables", first)
			}
			key := nomad.JobKey{Namespace: "default", ID: asks[0].JobID}
			read, err := readRecord(t.Context(), b.store, key)
			if err != nil || len(read.Groups) != len(asks) || !reflect.DeepEqual(read.Groups[asks[0].Group].Flights, b.book.records[key].Groups[asks[0].Group].Flights) {
				t.Fatalf("read back %d groups, %v", len(read.Groups), err)
			}
			if again, err := b.Decide(t.Context(), asks, false); err != nil || !reflect.DeepEqual(again, d) {
				t.Errorf("decided again: %v", err)
			}
			if len(b.store.items) != first {
				t.Errorf("%d Variables after the second writing, %d after the first", len(b.store.items), first)
			}
			next := newBench(t, "", machines...)
			next.store, next.Decider.store, next.clock.at = b.store, b.store, b.clock.at.Add(time.Second)
			next.book.Heard()
			part := recordPath(key) + "/LEFT/0"
			if _, err := b.store.Put(t.Context(), nomad.Item{Path: part, Values: map[string]string{"part": "x"}}); err != nil {
				t.Fatal(err)
			}
			if err := next.Load(t.Context()); err != nil || len(next.book.records) != 1 || len(next.book.log.events) != 0 {
				t.Fatalf("%d records, %+v, %v", len(next.book.records), next.book.log.events, err)
			}
			if b.store.items[part].Index != 0 {
				t.Error("a part that no decision names is kept")
			}
			for _, a := range asks {
				next.register(a)
			}
			next.clock.at = next.clock.at.Add(time.Hour)
			next.book.Apply([]nomad.Change{{JobGone: &key}}, next.index+1)
			if err := next.Purge(t.Context()); err != nil || len(b.store.items) != 0 {
				t.Errorf("%d Variables are left of a job that is gone, %v", len(b.store.items), err)
			}
		})
	}
}

// Records of this release are read by the one before, as long as they are small.
func TestASmallRecordLiesInOneVariable(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	b.decide(t, ask("job", "1G", 1))
	for path, item := range b.store.items {
		if isPart(path) || !strings.HasPrefix(item.Values["record"], `{"v":1,`) {
			t.Errorf("%s: %v", path, item.Values)
		}
	}
}
