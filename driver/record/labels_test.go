// SPDX-License-Identifier: MPL-2.0

package record

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestLabelsUponWhichOthersAct(t *testing.T) {
	for _, key := range []string{"nerdctl/state-dir", "io.containerd.image.config.stop-signal", "containerd.io/gc.root", LabelNode, "io.kubernetes.pod.name"} {
		_, err := Labels(nil, map[string]string{key: "/"})
		must.ErrorContains(t, err, "reserved", must.Sprint(key))
	}
}

// Names of containers have letters and digits of the task's alone, and are never the same.
func TestNamesOfContainers(t *testing.T) {
	for name, want := range map[string]string{
		"azAZ09/:@[`{-_é.": "azAZ09-abc12345", "": "task-abc12345", "___": "task-abc12345",
		strings.Repeat("x", 30): strings.Repeat("x", 24) + "-abc12345",
	} {
		cfg := &drivers.TaskConfig{Name: name, AllocID: "abc12345-9999"}
		id := NewID(cfg)
		must.Eq(t, want, id[:len(id)-10])
		must.RegexMatch(t, IDs, id)
		must.NotEq(t, id, NewID(cfg))
	}
}

// Labels may be as long as containerd takes them, and no longer.
func TestLabelsOfTheGreatestLength(t *testing.T) {
	label := func(key string, length int) error {
		_, err := Labels(&drivers.TaskConfig{}, map[string]string{key: strings.Repeat("x", length)})
		return err
	}
	must.NoError(t, label("key", maxLabel-3))
	must.ErrorContains(t, label("key", maxLabel-2), `labels: "key" is empty or, with its value, longer than 4096 bytes`)
	must.ErrorContains(t, label("", 1), `labels: "" is empty or`)
	must.ErrorContains(t, label("nerdctl/x", 1), `labels: "nerdctl/x" is reserved`)
	_, err := Labels(&drivers.TaskConfig{JobID: strings.Repeat("x", maxLabel-len(labelJob))}, nil)
	must.NoError(t, err)
	_, err = Labels(&drivers.TaskConfig{JobID: strings.Repeat("x", maxLabel)}, nil)
	must.ErrorContains(t, err, labelJob+" is longer than 4096 bytes")
	labels, err := Labels(&drivers.TaskConfig{JobID: "job"}, map[string]string{"team": "vision"})
	must.NoError(t, err)
	must.Eq(t, "vision", labels["team"])
	must.Eq(t, "job", labels[labelJob])
}
