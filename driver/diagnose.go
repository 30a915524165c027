// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
)

// Diagnose checks what of a node is this driver's: the configuration of the agent at
// path, empty for the defaults, containerd and its runc, and what tasks may ask of the
// node. allocDir is the agent's directory of allocations, empty where it is not known.
// It changes nothing.
func Diagnose(ctx context.Context, path, allocDir string, report *doctor.Report) {
	area := report.Area("containers")
	s, err := config.Read(path)
	if err != nil {
		area.Fail("configuration", "correct it; "+config.PluginName+" validate checks it again", "%v", err)
		return
	}
	if !s.Enabled {
		area.Warn("configuration", "set enabled = true, or take the block out", "the driver is disabled in %s", path)
		return
	}
	if path != "" {
		area.OK("configuration", "%s is valid", path)
	}
	for _, warning := range s.Idle() {
		area.Warn("configuration", "change "+path, "%s", warning)
	}
	diagnoseContainerd(ctx, s, area)
	diagnosePrograms(s, area)
	diagnoseSecurity(area)
	diagnoseAllocations(area, allocDir)
}

func diagnoseContainerd(ctx context.Context, s config.Settings, area *doctor.Area) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := runtime.New(runtime.Config{Socket: s.Socket, Namespace: s.Namespace, Snapshotter: s.Snapshotter})
	if err != nil {
		area.Fail("containerd", "correct the plugin's configuration", "%v", err)
		return
	}
	defer r.Close()
	version, err := r.Version(ctx)
	if err != nil {
		area.Fail("containerd", "systemctl status containerd; is it installed, and is socket in the plugin's configuration its socket?",
			"it does not answer at %s: %v", s.Socket, err)
		return
	}
	area.OK("containerd", "%s at %s", version, s.Socket)
	if err := checkSnapshotter(ctx, r, s.Snapshotter); err != nil {
		area.Fail("snapshotter", "choose one of those; ctr plugins ls shows why one is missing", "%v", err)
	} else {
		area.OK("snapshotter", "%s", s.Snapshotter)
	}
	if s.ContainerdRuntime == runcRuntime {
		version, err := r.Runc(ctx)
		diagnoseRunc(area, version, err)
	}
}

func diagnoseRunc(area *doctor.Area, version runtime.RuncVersion, err error) {
	const check = "runc"
	if err != nil {
		area.Fail(check, "install runc where containerd finds it, on its PATH", "%v", err)
		return
	}
	switch safe, why := judgeRunc(version); safe {
	case runcSafe:
		area.OK(check, "%s at %s", version.Version, version.Path)
	case runcUnknown:
		area.Warn(check, "look into the distribution's security tracker", "%s", why)
	default:
		area.Fail(check, "install a newer runc: an image can leave its container", "%s", why)
	}
}

// diagnosePrograms looks for what single keys of a task need.
func diagnosePrograms(s config.Settings, area *doctor.Area) {
	if networks(s).Found() {
		area.OK("CNI plugins", "%s", s.CNIPath)
	} else {
		area.Warn("CNI plugins", "install them (Debian: containernetworking-plugins), or name their folder in cni_path", "network_mode = \"bridge\" is refused: there is no program bridge in %s", s.CNIPath)
	}
	if _, err := os.Stat(s.InitPath); err != nil {
		area.Warn("init", "install it (Debian: tini), or name another one in init_path", "init = true is refused: %v", err)
	} else {
		area.OK("init", "%s", s.InitPath)
	}
	if program := selfProgram(s); program != "" {
		area.OK("nomad-gpu-self", "%s", program)
	} else if s.SelfPath != "" {
		area.Warn("nomad-gpu-self", "install it where Nomad's PATH finds it, or name it in self_path", "tasks have a socket for their GPU and no program that speaks to it: self_path is %q", s.SelfPath)
	}
}

func diagnoseSecurity(area *doctor.Area) {
	if apparmor.HostSupports() {
		area.OK("AppArmor", "tasks are confined by the profile %s", appArmorProfile)
	} else {
		area.Warn("AppArmor", "boot with apparmor=1 security=apparmor where the distribution has it", "the kernel has none: tasks are confined by namespaces, capabilities and seccomp alone")
	}
	enforce, err := os.ReadFile("/sys/fs/selinux/enforce")
	if err == nil && strings.TrimSpace(string(enforce)) == "1" {
		area.Warn("SELinux", "set selinux_label in jobs that need one; see docs/security.md", "it is enforcing, which this driver has not been tried with")
	}
}

func diagnoseAllocations(area *doctor.Area, allocDir string) {
	const check = "allocations"
	if allocDir == "" {
		return
	}
	lacks, err := rooted.RestrictionsOf(allocDir)
	const wanted = unix.MS_NOSUID | unix.MS_NODEV
	switch {
	case err != nil:
		area.Warn(check, "run this as root, on a client that has run", "the mount of %s is not known: %v", allocDir, err)
	case lacks&wanted != wanted:
		area.Warn(check, "mount the file system of "+filepath.Dir(allocDir)+" with nosuid,nodev", "%s allows set-user-ID programs and devices, which a task's root can leave there", allocDir)
	default:
		area.OK(check, "%s is mounted with nosuid and nodev", allocDir)
	}
}
