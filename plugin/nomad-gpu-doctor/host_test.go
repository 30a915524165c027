// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

// answers are what programs print, by their name.
type answers map[string]string

func (a answers) run(_ context.Context, program string, _ ...string) (string, error) {
	text, found := a[filepath.Base(program)]
	if !found {
		return "", &exec.Error{Name: program, Err: errors.Join(exec.ErrNotFound, fs.ErrNotExist)}
	}
	if why, fails := strings.CutPrefix(text, "fails: "); fails {
		return "", errors.New(why)
	}
	return text, nil
}

// machine is a host with files and programs of a test's own; a path that ends in a
// slash is a folder.
func machine(t *testing.T, files map[string]string, programs answers) host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			must.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return host{root: root, run: programs.run, synchronized: func() (bool, error) { return true, nil }}
}

// findings checks that a check found something, of this status and with this text.
func findings(t *testing.T, r *doctor.Report, check string, status doctor.Status, want string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check && f.Status == status && strings.Contains(f.Detail+" -> "+f.Action, want) {
			must.True(t, status == doctor.OK || f.Action != "", must.Sprint(f))
			return
		}
	}
	t.Errorf("%s: no finding is %s with %q: %+v", check, status, want, r.Findings)
}

const (
	kernelFile      = "proc/sys/kernel/osrelease"
	controllersFile = "sys/fs/cgroup/cgroup.controllers"
)

func TestHosts(t *testing.T) {
	good := map[string]string{kernelFile: "6.1.0-25-amd64\n", controllersFile: "cpuset cpu io memory hugetlb pids\n"}
	unit := answers{"systemctl": "LoadState=loaded\nKillMode=process"}
	for name, tc := range map[string]struct {
		files    map[string]string
		programs answers
		check    string
		status   doctor.Status
		want     string
	}{
		"kernel":         {good, unit, "kernel", doctor.OK, "6.1.0"},
		"old kernel":     {map[string]string{kernelFile: "5.5.19"}, unit, "kernel", doctor.Warning, "openat2"},
		"no kernel":      {nil, unit, "kernel", doctor.Warning, "not known"},
		"cgroup v2":      {good, unit, "control groups", doctor.OK, "version 2"},
		"cgroup v1":      {map[string]string{"sys/fs/cgroup/memory/": ""}, unit, "control groups", doctor.OK, "version 1"},
		"no cgroups":     {nil, unit, "control groups", doctor.Failed, "there are none"},
		"no memory":      {map[string]string{controllersFile: "cpuset cpu io pids"}, unit, "control groups", doctor.Failed, "cgroup_enable=memory"},
		"unit":           {good, unit, "Nomad's unit", doctor.OK, "process"},
		"kill mode":      {good, answers{"systemctl": "KillMode=control-group\nLoadState=loaded"}, "Nomad's unit", doctor.Warning, "KillMode=control-group"},
		"no unit":        {good, answers{"systemctl": "LoadState=not-found"}, "Nomad's unit", doctor.Warning, "there is no nomad.service"},
		"a synced clock": {good, unit, "clock", doctor.OK, "synchronized"},
	} {
		t.Run(name, func(t *testing.T) {
			var r doctor.Report
			machine(t, tc.files, tc.programs).diagnose(t.Context(), r.Area("host"))
			findings(t, &r, tc.check, tc.status, tc.want)
		})
	}

	var r doctor.Report
	h := machine(t, good, nil)
	h.synchronized = func() (bool, error) { return false, nil }
	h.diagnose(t.Context(), r.Area("host"))
	findings(t, &r, "clock", doctor.Warning, "chrony")
	for _, f := range r.Findings {
		must.NotEq(t, "Nomad's unit", f.Check, must.Sprint("a machine without systemd"))
	}
	h.synchronized = func() (bool, error) { return false, errors.New("not permitted") }
	h.diagnose(t.Context(), r.Area("host"))
	findings(t, &r, "clock", doctor.Warning, "not permitted")
}

func TestThisHost(t *testing.T) {
	var r doctor.Report
	thisHost().diagnose(t.Context(), r.Area("host"))
	findings(t, &r, "kernel", doctor.OK, ".")
	_, err := runProgram(t.Context(), "sh", "-c", "echo broken >&2; exit 3")
	must.ErrorContains(t, err, "exit status 3: broken")
}

func TestPlugins(t *testing.T) {
	now := "nomad-device-gpu " + version.String() + " (go)"
	both := answers{"nomad-device-gpu": now, "nomad-driver-containerd": "nomad-driver-containerd " + version.String()}
	blocks := agentconfig.Agent{PluginDir: "/plugins", Plugins: []string{"nomad-device-gpu", "nomad-driver-containerd"}}
	withRival := blocks
	withRival.Plugins = append([]string{"nomad-device-nvidia"}, blocks.Plugins...)
	for name, tc := range map[string]struct {
		agent    agentconfig.Agent
		files    map[string]string
		programs answers
		check    string
		status   doctor.Status
		want     string
	}{
		"present":           {blocks, nil, both, "nomad-device-gpu", doctor.OK, now},
		"device alone":      {agentconfig.Agent{PluginDir: "/plugins", Plugins: blocks.Plugins[:1]}, nil, answers{"nomad-device-gpu": now}, "nomad-driver-containerd", doctor.OK, "through other drivers"},
		"device's block":    {agentconfig.Agent{PluginDir: "/plugins", Plugins: blocks.Plugins[:1]}, nil, both, "nomad-driver-containerd", doctor.OK, "through other drivers"},
		"no folder":         {agentconfig.Agent{}, nil, both, "plugin_dir", doctor.Failed, "names none"},
		"no block":          {agentconfig.Agent{PluginDir: "/plugins"}, nil, both, "nomad-driver-containerd", doctor.Failed, "does not load it"},
		"absent":            {blocks, nil, nil, "nomad-device-gpu", doctor.Failed, "there is no "},
		"does not run":      {blocks, nil, answers{"nomad-device-gpu": "fails: exec format error"}, "nomad-device-gpu", doctor.Failed, "exec format error"},
		"another release":   {blocks, nil, answers{"nomad-device-gpu": "nomad-device-gpu 0.0.9 (go)"}, "nomad-device-gpu", doctor.Warning, "0.0.9"},
		"a rival's block":   {withRival, nil, both, "nomad-device-nvidia", doctor.Warning, "has a block"},
		"a rival and block": {withRival, map[string]string{"plugins/nomad-device-nvidia": ""}, both, "nomad-device-nvidia", doctor.Failed, "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			var r doctor.Report
			machine(t, tc.files, tc.programs).diagnosePlugins(t.Context(), tc.agent, r.Area("plugins"))
			findings(t, &r, tc.check, tc.status, tc.want)
		})
	}
}

func TestDocker(t *testing.T) {
	for name, tc := range map[string]struct {
		programs answers
		status   doctor.Status
		want     string
	}{
		"with the runtime":    {answers{"docker": `{"nvidia":{"path":"nvidia-container-runtime"},"runc":{"path":"runc"}}`}, doctor.OK, "Docker has it"},
		"without the runtime": {answers{"docker": `{"runc":{"path":"runc"}}`}, doctor.Warning, "nvidia-ctk"},
		"does not answer":     {answers{"docker": "fails: cannot connect"}, doctor.Warning, "cannot connect"},
	} {
		t.Run(name, func(t *testing.T) {
			var r doctor.Report
			machine(t, nil, tc.programs).diagnoseDocker(t.Context(), r.Area("docker"))
			findings(t, &r, "runtime nvidia", tc.status, tc.want)
		})
	}
	var r doctor.Report
	machine(t, nil, nil).diagnoseDocker(t.Context(), r.Area("docker"))
	must.SliceEmpty(t, r.Findings)
}
