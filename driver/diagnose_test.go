// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
)

// diagnose checks the node with a configuration, and returns its findings by check, a
// line each: status, detail, action.
func diagnose(t *testing.T, config, allocDir string) (map[string]string, doctor.Status) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.hcl")
	must.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	var report doctor.Report
	Diagnose(t.Context(), path, allocDir, &report)
	found := map[string]string{}
	for _, f := range report.Findings {
		found[f.Check] += fmt.Sprintf("%s: %s -> %s\n", f.Status, f.Detail, f.Action)
		must.True(t, f.Status == doctor.OK || f.Action != "", must.Sprint(f))
	}
	return found, report.Worst()
}

func TestDiagnoseOfContainerd(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		config := fmt.Sprintf("socket = %q\nnamespace = %q\ninit_path = \"/proc/self/exe\"\n", e.config.Socket, e.config.Namespace)
		found, _ := diagnose(t, config, e.dir)
		for _, check := range []string{"configuration", "containerd", "snapshotter", "CNI plugins", "init"} {
			must.StrHasPrefix(t, "ok: ", found[check], must.Sprint(check))
		}
		must.StrHasPrefix(t, "warning: "+e.dir+" allows set-user-ID programs", found["allocations"])

		found, _ = diagnose(t, strings.Replace(config, "/proc/self/exe", "/nowhere/init", 1)+"snapshotter = \"zfs-of-old\"\ncni_path = \"/nowhere\"", filepath.Join(e.dir, "none"))
		must.StrHasPrefix(t, "failed: snapshotter \"zfs-of-old\"", found["snapshotter"])
		must.StrHasPrefix(t, "warning: network_mode", found["CNI plugins"])
		must.StrHasPrefix(t, "warning: init = true", found["init"])
		must.StrHasPrefix(t, "warning: the mount of", found["allocations"])

		e.containerd.kill()
		found, worst := diagnose(t, config, "")
		must.Eq(t, doctor.Failed, worst)
		must.StrContains(t, found["containerd"], "failed: it does not answer at "+e.config.Socket)
		must.StrContains(t, found["containerd"], "systemctl status containerd")
	})
}

func TestDiagnoseOfConfigurations(t *testing.T) {
	found, worst := diagnose(t, "snapshoter = \"overlayfs\"", "")
	must.Eq(t, doctor.Failed, worst)
	must.StrContains(t, found["configuration"], "snapshoter")
	found, worst = diagnose(t, "enabled = false", "")
	must.Eq(t, doctor.Warning, worst)
	must.StrContains(t, found["configuration"], "disabled")
}

func TestDiagnoseOfPrograms(t *testing.T) {
	for path, want := range map[string]doctor.Status{"/bin/sh": doctor.OK, "/nowhere/self": doctor.Warning, "": ""} {
		var report doctor.Report
		diagnosePrograms(config.Settings{Config: config.Config{SelfPath: path, InitPath: "/bin/sh"}}, report.Area("containers"))
		var found doctor.Status
		for _, f := range report.Findings {
			if f.Check == "nomad-gpu-self" {
				found = f.Status
				must.StrContains(t, f.Detail, path)
			}
		}
		must.Eq(t, want, found, must.Sprint(path))
	}
}

func TestDiagnoseOfRunc(t *testing.T) {
	for _, test := range []struct {
		version string
		err     error
		want    string
	}{
		{"1.4.0", nil, "ok"},
		{"1.1.5+ds1", nil, "warning"},
		{"1.1.5", nil, "failed"},
		{"", errors.New("find containerd's runc"), "failed"},
	} {
		var report doctor.Report
		diagnoseRunc(report.Area("containers"), runtime.RuncVersion{Version: test.version, Path: "/usr/bin/runc"}, test.err)
		must.Eq(t, test.want, string(report.Worst()), must.Sprint(test.version))
	}
}

func TestDiagnoseOfAllocationsOnASafeMount(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""))
	defer func() { must.NoError(t, unix.Unmount(dir, 0)) }()
	var report doctor.Report
	diagnoseAllocations(report.Area("containers"), dir)
	must.Eq(t, doctor.OK, report.Worst())
	must.True(t, strings.Contains(report.Findings[0].Detail, dir))
}
