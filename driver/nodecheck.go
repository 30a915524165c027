// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/apparmor"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// checkNode refuses what this node's containerd and kernel do not have, before an
// image is pulled for it.
func checkNode(ctx context.Context, client *runtime.Runtime, config taskconfig.Config, s config.Settings) error {
	if config.WantsAppArmor() && !apparmor.HostSupports() {
		return fmt.Errorf("apparmor_profile %q is asked for, but this node's kernel has no AppArmor; remove it, or choose a node that has", config.AppArmor)
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); config.SELinuxLabel != "" && err != nil {
		return fmt.Errorf("selinux_label %q is asked for, but this node's kernel has no SELinux; remove it, or choose a node that has", config.SELinuxLabel)
	}
	if _, err := os.Stat(s.InitPath); config.Init && err != nil {
		return fmt.Errorf("init needs an init program on the node; init_path is %q: %w", s.InitPath, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return checkSnapshotter(ctx, client, config.Snapshotter)
}

// errUnknownSnapshotter is an answer of containerd, unlike a question that it did not answer.
var errUnknownSnapshotter = errors.New("not one of those that this node's containerd has")

// checkSnapshotter holds a name against what containerd has; "" is its default.
func checkSnapshotter(ctx context.Context, client *runtime.Runtime, name string) error {
	if name == "" {
		return nil
	}
	have, err := client.Snapshotters(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(have, name) {
		return fmt.Errorf("snapshotter %q is %w: %s", name, errUnknownSnapshotter, strings.Join(have, ", "))
	}
	return nil
}

// appArmorProfile is the default profile's name, on hosts with AppArmor.
const appArmorProfile = "nomad-gpu-default"
