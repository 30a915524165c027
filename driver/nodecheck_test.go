// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func TestWhatTheNodeDoesNotHaveIsNamed(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		tests := map[string]func(*taskconfig.Config){
			`snapshotter "zfs-nonsense" is not one of those that this node's containerd has: `: func(c *taskconfig.Config) { c.Snapshotter = "zfs-nonsense" },
		}
		if !apparmor.HostSupports() {
			tests[`apparmor_profile "strict" is asked for, but this node's kernel has no AppArmor`] = func(c *taskconfig.Config) { c.AppArmor = "strict" }
		}
		if !fileExists("/sys/fs/selinux/enforce") {
			tests[`selinux_label "system_u:object_r:x:s0" is asked for, but this node's kernel has no SELinux`] = func(c *taskconfig.Config) { c.SELinuxLabel = "system_u:object_r:x:s0" }
		}
		for says, change := range tests {
			config := defaultTaskConfig("true")
			change(&config)
			_, _, err := e.harness.StartTask(e.quietTask(config))
			must.ErrorContains(t, err, says)
		}
		config := defaultTaskConfig("true")
		config.Snapshotter = "zfs-nonsense"
		_, _, err := e.harness.StartTask(e.quietTask(config))
		must.ErrorContains(t, err, "native, overlayfs")

		// Without a kernel that confines there is nothing to lift.
		config = defaultTaskConfig("true")
		config.AppArmor = "unconfined"
		_, result := e.run(config)
		must.Eq(t, 0, result.ExitCode)
	})
}

func TestAnotherSnapshotter(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("cat", "/etc/image")
		config.Snapshotter = "native"
		out, _ := e.run(config)
		must.Eq(t, testImage, out)
	})
}

func TestRuntimeThatIsNotInstalled(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		const name = "io.containerd.nonsense.v1"
		allowed := e.with(func(c *config.Config) { c.AllowRuntimes = []string{name} })
		config := defaultTaskConfig("true")
		config.Runtime = name
		_, _, err := allowed.harness.StartTask(allowed.quietTask(config))
		must.ErrorContains(t, err, "containerd-shim-nonsense-v1")
		must.Len(t, 0, allowed.containers())
	})
}

func TestFingerprintNamesASnapshotterThatContainerdLacks(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		wrong := e.with(func(c *config.Config) { c.Snapshotter = "stargz" })
		got, _ := wrong.driver.fingerprint(context.Background())
		must.Eq(t, drivers.HealthStateUnhealthy, got.Health)
		must.StrContains(t, got.HealthDescription, `plugin config: snapshotter "stargz" is not one of`)
	})
}
