// SPDX-License-Identifier: MPL-2.0

package clientstate

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/state"
	"github.com/hashicorp/nomad/nomad/mock"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
)

// open opens a client's database as Nomad does, with its lock.
func open(t *testing.T) (state.StateDB, string) {
	t.Helper()
	dir := t.TempDir()
	db, err := state.NewBoltStateDB(hclog.NewNullLogger(), dir)
	must.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, filepath.Join(dir, fileName)
}

func TestFind(t *testing.T) {
	_, err := Find(os.Getpid())
	must.ErrorIs(t, err, ErrNone)
	_, path := open(t)
	found, err := Find(os.Getpid())
	must.NoError(t, err)
	must.Eq(t, path, found)
}

// TestUnwanted: what Nomad's own code writes when a task is to end is seen, and the rest
// of what it writes about a task is not taken for that.
func TestUnwanted(t *testing.T) {
	db, path := open(t)
	alloc := mock.Alloc()
	unwanted := func() string {
		t.Helper()
		v, err := Read(path)
		must.NoError(t, err)
		defer v.Close()
		reason, err := v.Unwanted(alloc.ID, "web")
		must.NoError(t, err)
		return reason
	}
	must.Eq(t, "", unwanted(), must.Sprint("nothing is known of it"))
	must.NoError(t, db.PutAllocation(alloc))
	must.Eq(t, "", unwanted())
	put := func(events ...string) {
		t.Helper()
		s := structs.NewTaskState()
		for _, event := range events {
			s.Events = append(s.Events, structs.NewTaskEvent(event))
		}
		must.NoError(t, db.PutTaskState(alloc.ID, "web", s))
	}
	put(structs.TaskReceived, structs.TaskSetup, structs.TaskDriverMessage, structs.TaskRestarting, structs.TaskRestartSignal)
	must.Eq(t, "", unwanted())
	for _, event := range []string{structs.TaskKilling, structs.TaskSiblingFailed, structs.TaskLeaderDead, structs.TaskMainDead} {
		put(structs.TaskReceived, event, structs.TaskDriverMessage)
		must.Eq(t, "Nomad ends the task: "+event, unwanted())
	}
	put(structs.TaskReceived)
	for _, status := range []string{structs.AllocDesiredStatusStop, structs.AllocDesiredStatusEvict} {
		stopped := alloc.Copy()
		stopped.DesiredStatus, stopped.DesiredDescription = status, "alloc not needed"
		must.NoError(t, db.PutAllocation(stopped))
		must.Eq(t, "Nomad wants the allocation to "+status+": alloc not needed", unwanted())
	}
	must.NoError(t, db.DeleteAllocationBucket(alloc.ID))
	must.Eq(t, "", unwanted())
}

// TestReadWhileNomadWrites: each view is one state that the client was in. Both
// allocations are stored in one transaction after the other, the first one first.
func TestReadWhileNomadWrites(t *testing.T) {
	db, path := open(t)
	first, second := mock.Alloc(), mock.Alloc()
	stop, over := make(chan struct{}), make(chan error, 1)
	put := func(n int) error {
		for _, alloc := range []*structs.Allocation{first, second} {
			alloc.DesiredStatus, alloc.DesiredDescription = structs.AllocDesiredStatusStop, fmt.Sprint(n)
			if err := db.PutAllocation(alloc); err != nil {
				return err
			}
		}
		return nil
	}
	must.NoError(t, put(0))
	go func() {
		var err error
		for n := 1; err == nil; n++ {
			select {
			case <-stop:
				over <- nil
				return
			default:
				err = put(n)
			}
		}
		over <- err
	}()
	for seen := 0; seen < 300; {
		v, err := Read(path)
		if err != nil {
			must.ErrorIs(t, err, errChanged)
			continue
		}
		seen++
		var at [2]int
		for i, alloc := range []*structs.Allocation{first, second} {
			reason, err := v.Unwanted(alloc.ID, "web")
			must.NoError(t, err)
			_, err = fmt.Sscanf(reason, "Nomad wants the allocation to stop: %d", &at[i])
			must.NoError(t, err)
		}
		must.True(t, at[0] == at[1] || at[0] == at[1]+1, must.Sprint(at))
		must.NoError(t, v.Close())
	}
	close(stop)
	must.NoError(t, <-over)
}

// TestMetaAndDevices: what Nomad's own code writes of metadata and of the devices of
// allocations is read.
func TestMetaAndDevices(t *testing.T) {
	db, path := open(t)
	look := func() (map[string]string, map[string]string) {
		t.Helper()
		v, err := Read(path)
		must.NoError(t, err)
		defer v.Close()
		meta, err := v.Meta()
		must.NoError(t, err)
		held, err := v.Devices()
		must.NoError(t, err)
		return meta, held
	}
	meta, held := look()
	must.MapEmpty(t, meta)
	must.MapEmpty(t, held)
	value := "2"
	must.NoError(t, db.PutNodeMeta(map[string]*string{"kept": &value, "gone": nil}))
	alloc := mock.Alloc()
	alloc.AllocatedResources.Tasks["web"].Devices = []*structs.AllocatedDeviceResource{{Vendor: "nvidia", Type: "mig", Name: "1g.10gb", DeviceIDs: []string{"MIG-a", "MIG-b"}}}
	must.NoError(t, db.PutAllocation(alloc))
	meta, held = look()
	must.Eq(t, map[string]string{"kept": "2"}, meta)
	must.Eq(t, map[string]string{"MIG-a": alloc.ID, "MIG-b": alloc.ID}, held)
	for _, state := range []string{structs.TaskStatePending, structs.TaskStateRunning} {
		must.NoError(t, db.PutTaskState(alloc.ID, "web", &structs.TaskState{State: state}))
		_, held = look()
		must.MapLen(t, 2, held, must.Sprint(state))
	}
	must.NoError(t, db.PutTaskState(alloc.ID, "web", &structs.TaskState{State: structs.TaskStateDead}))
	_, held = look()
	must.MapEmpty(t, held)
}
