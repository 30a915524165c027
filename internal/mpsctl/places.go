// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Under MPS v3 a task's programs are in its namespace by their control group, whatever
// their environment says: the gate looks it up here for each program that connects. A
// place is written when its namespace has its limits, and removed before the namespace is.

// Places is the directory that says which control group is in which namespace, a file for
// each. It lies beside the daemon's own sockets, and is there only under MPS v3.
type Places string

// PlacesOf are those of a daemon, by the directory of its own sockets.
func PlacesOf(pipeDir string) Places { return Places(filepath.Join(filepath.Dir(pipeDir), "places")) }

// Exist reports whether programs are placed at all, as under MPS v3 alone.
func (p Places) Exist() bool {
	info, err := os.Lstat(string(p))
	return err == nil && info.IsDir()
}

// Begin forgets all places of an earlier daemon.
func (p Places) Begin() error {
	if err := p.End(); err != nil {
		return err
	}
	return os.MkdirAll(string(p), 0o700)
}

// End leaves no places, as under MPS v2.
func (p Places) End() error { return os.RemoveAll(string(p)) }

// Put places the processes of a control group, and of those below it, in a namespace.
func (p Places) Put(namespace, group string) error {
	if strings.Trim(group, "/") == "" {
		return fmt.Errorf("place control group %q: every process would be in it", group)
	}
	return statedir.WriteFile(filepath.Join(string(p), namespace), []byte(group), 0o600)
}

// Remove forgets a namespace's place.
func (p Places) Remove(namespace string) error {
	err := os.Remove(filepath.Join(string(p), namespace))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// All are the control groups, by their namespaces.
func (p Places) All() (map[string]string, error) {
	entries, err := os.ReadDir(string(p))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(string(p), e.Name()))
		if err == nil && !strings.HasPrefix(e.Name(), ".") { // else it is not written yet
			all[e.Name()] = string(text)
		}
	}
	return all, nil
}

// Find is the namespace of a process by its control groups, "" where it has none.
func (p Places) Find(groups []cgroup.Group) (string, error) {
	all, err := p.All()
	found, deepest := "", ""
	for namespace, group := range all {
		if cgroup.Within(groups, group) && len(group) > len(deepest) {
			found, deepest = namespace, group
		}
	}
	return found, err
}
