// SPDX-License-Identifier: MPL-2.0

package record

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

func TestRecordsOfTasks(t *testing.T) {
	stateDir := t.TempDir()
	records := StoreIn(stateDir)
	none, err := records.OfTask("t")
	must.NoError(t, err)
	must.SliceEmpty(t, none)
	must.NoError(t, records.MarkDestroyed("none"))
	_, err = os.Stat(filepath.Join(stateDir, "tasks"))
	must.ErrorIs(t, err, fs.ErrNotExist)

	for container, task := range map[string]string{"c1": "t", "c2": "t", "c3": "u"} {
		must.NoError(t, records.Write(Kept{Container: container, Image: "i", Labels: map[string]string{LabelTaskID: task}, Record: Record{StopSignal: "SIGINT"}}))
	}
	found, err := records.OfTask("t")
	must.NoError(t, err)
	must.Len(t, 2, found)
	must.NoError(t, records.MarkDestroyed("c1"))
	found, err = records.Find(func(t Kept) bool { return t.Destroyed })
	must.NoError(t, err)
	must.Len(t, 1, found)
	must.Eq(t, "c1", found[0].Container)
	c := found[0].Unloaded(nil)
	must.Eq(t, "c1", c.ID)
	must.Eq(t, "i", c.Image)
	r, err := Of(c)
	must.NoError(t, err)
	must.Eq(t, "SIGINT", r.StopSignal)
	must.NoError(t, records.Remove(t.Context(), "c1"))
	must.NoError(t, records.Remove(t.Context(), "c1"))
	_, err = records.read("c1")
	must.ErrorIs(t, err, fs.ErrNotExist)

	for name, text := range map[string]string{
		"broken":         `{`,
		"newer":          `{"version":2,"container":"newer"}`,
		"of another one": `{"version":1,"container":"c2"}`,
	} {
		must.NoError(t, os.MkdirAll(filepath.Dir(records.path(name)), 0o700))
		must.NoError(t, os.WriteFile(records.path(name), []byte(text), 0o600))
		_, err := records.read(name)
		must.ErrorContains(t, err, name)
		must.Error(t, records.MarkDestroyed(name))
		found, err := records.OfTask("t")
		must.ErrorContains(t, err, name)
		must.Len(t, 1, found, must.Sprint("the others are found all the same"))
		must.NoError(t, records.Remove(t.Context(), name))
	}
	_, err = Of(&runtime.Container{ID: "x", Record: []byte("{")})
	must.ErrorContains(t, err, "read record of container x")
}

// Records that cannot be read are told, beside those that can.
func TestRecordsThatCannotBeRead(t *testing.T) {
	stateDir := t.TempDir()
	records := StoreIn(stateDir)
	must.NoError(t, records.Write(Kept{Container: "good", Labels: map[string]string{LabelTaskID: "task"}}))
	for name, text := range map[string]string{"cut": `{"version":1,`, "of another": `{"version":1,"container":"x"}`, "of the future": `{"version":2,"container":"of the future"}`} {
		must.NoError(t, os.MkdirAll(filepath.Dir(records.path(name)), 0o700))
		must.NoError(t, os.WriteFile(records.path(name), []byte(text), 0o600))
		must.ErrorContains(t, records.MarkDestroyed(name), "read record of container "+name)
	}
	must.NoError(t, os.Mkdir(filepath.Join(stateDir, "tasks", "being written"), 0o700))
	found, err := records.OfTask("task")
	must.Len(t, 1, found)
	must.StrNotContains(t, err.Error(), "being written")
	must.ErrorContains(t, err, "read record of container cut")
	must.NoError(t, records.MarkDestroyed("none"))
	must.NoError(t, records.MarkDestroyed("good"))
	good, err := records.read("good")
	must.NoError(t, err)
	must.True(t, good.Destroyed)
	spoiled := filepath.Join(stateDir, "tasks")
	must.NoError(t, os.RemoveAll(spoiled))
	must.NoError(t, os.WriteFile(spoiled, nil, 0o600))
	_, err = records.OfTask("task")
	must.ErrorContains(t, err, "list "+spoiled)
	must.ErrorContains(t, records.Write(Kept{Container: "box"}), "write record of container box")
}
