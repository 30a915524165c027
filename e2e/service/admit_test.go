package service

import (
	"testing"
	"time"
)

func TestAdmission(t *testing.T) {
	ctx, c := start(t, 2)
	r := serve(ctx, t, c, "")
	until(ctx, t, "admit a first job", 30*time.Second, func() (bool, string) {
		err := submit(ctx, r.API, job{id: "first", meta: map[string]string{"gpu": "4G"}})
		if err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	live := runs(ctx, t, c.API, "first", 1)
	full, err := c.Alloc(ctx, live[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s %+v", full.NodeID, full.AllocatedResources.Tasks["sleep"].Devices)
	t.Logf("%v", record(ctx, t, c.API, "default/first"))

	// An unchanged job changes nothing that runs.
	if err := submit(ctx, r.API, job{id: "first", meta: map[string]string{"gpu": "4G"}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	again := runs(ctx, t, c.API, "first", 1)
	if again[0].ID != live[0].ID {
		t.Errorf("the alloc was replaced: %s, then %s", live[0].ID, again[0].ID)
	}
}
