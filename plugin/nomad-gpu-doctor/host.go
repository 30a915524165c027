// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device"
	driverconfig "github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/agentconfig"
	"github.com/nomad-gpu/nomad-gpu/internal/doctor"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

// host is the machine, as far as it is neither GPUs nor containers.
type host struct {
	// root is where its files are, run runs one of its programs, and synchronized
	// tells whether its clock is.
	root         string
	run          func(ctx context.Context, program string, args ...string) (string, error)
	synchronized func() (bool, error)
}

func thisHost() host { return host{root: "/", run: runProgram, synchronized: clockSynchronized} }

const programTimeout = 15 * time.Second

func runProgram(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// clockSynchronized asks the kernel, which is told by whatever keeps the time.
func clockSynchronized() (bool, error) {
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != unix.TIME_ERROR, err
}

func (h host) read(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(h.root, name))
	return strings.TrimSpace(string(text)), err
}

func (h host) diagnose(ctx context.Context, area *doctor.Area) {
	h.diagnoseKernel(area)
	h.diagnoseControlGroups(area)
	h.diagnoseClock(area)
	h.diagnoseUnit(ctx, area)
}

// leastKernel has openat2, by which the driver opens what a task can have changed.
var leastKernel = [2]int{5, 6}

func (h host) diagnoseKernel(area *doctor.Area) {
	const check = "kernel"
	release, err := h.read("proc/sys/kernel/osrelease")
	var have [2]int
	if err == nil {
		_, err = fmt.Sscanf(release, "%d.%d", &have[0], &have[1])
	}
	switch {
	case err != nil:
		area.Warn(check, "is /proc mounted?", "its version is not known: %v", err)
	case slices.Compare(have[:], leastKernel[:]) < 0:
		area.Warn(check, "use a newer kernel when you can", "%s is older than %d.%d and has no openat2: paths of tasks are opened step by step, which is slower", release, leastKernel[0], leastKernel[1])
	default:
		area.OK(check, "%s", release)
	}
}

// controllers are those that tasks are limited with.
var controllers = []string{"cpu", "cpuset", "io", "memory", "pids"}

func (h host) diagnoseControlGroups(area *doctor.Area) {
	const check = "control groups"
	text, err := h.read("sys/fs/cgroup/cgroup.controllers")
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(h.root, "sys/fs/cgroup/memory")); err != nil {
			area.Fail(check, "mount them; systemd does at boot", "there are none below /sys/fs/cgroup")
			return
		}
		area.OK(check, "version 1")
		return
	}
	if err != nil {
		area.Warn(check, "run this as root", "%v", err)
		return
	}
	have := strings.Fields(text)
	missing := slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return slices.Contains(have, c) })
	if len(missing) > 0 {
		area.Fail(check, "boot with them: cgroup_enable="+missing[0]+", and no cgroup_disable", "version 2 without the controllers %s: what they limit is not limited", strings.Join(missing, ", "))
		return
	}
	area.OK(check, "version 2")
}

func (h host) diagnoseClock(area *doctor.Area) {
	const check = "clock"
	switch synchronized, err := h.synchronized(); {
	case err != nil:
		area.Warn(check, "look at timedatectl", "whether it is synchronized is not known: %v", err)
	case !synchronized:
		area.Warn(check, "run chrony or systemd-timesyncd: Nomad's tokens and TLS certificates expire by the clock, and events of nodes are compared by it", "nothing synchronizes it")
	default:
		area.OK(check, "synchronized")
	}
}

// diagnoseUnit looks at how systemd runs Nomad, where it does.
func (h host) diagnoseUnit(ctx context.Context, area *doctor.Area) {
	const check = "Nomad's unit"
	text, err := h.run(ctx, "systemctl", "show", "nomad.service", "--property=LoadState,KillMode")
	if err != nil {
		return // no systemd
	}
	properties := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		properties[key] = value
	}
	switch {
	case properties["LoadState"] != "loaded":
		area.Warn(check, "docs/install.md has one", "there is no nomad.service: after a reboot something else has to start Nomad")
	case properties["KillMode"] != "process":
		area.Warn(check, "add KillMode=process to nomad.service", "KillMode=%s: a restart ends what Nomad's exec and raw_exec drivers run; containers and MPS daemons of ours go on", properties["KillMode"])
	default:
		area.OK(check, "KillMode=process")
	}
}

// ours are the plugins that this doctor is for, rivals others that offer the same GPUs.
var (
	ours   = []string{device.Name, driverconfig.PluginName}
	rivals = []string{"nomad-device-nvidia", "nvidia-gpu"}
)

func (h host) diagnosePlugins(ctx context.Context, agent agentconfig.Agent, area *doctor.Area) {
	dir := agent.PluginDir
	if dir == "" {
		area.Fail("plugin_dir", "set plugin_dir in the agent's configuration; Nomad's default is data_dir/plugins", "the configuration names none")
		return
	}
	for _, plugin := range ours {
		if plugin == driverconfig.PluginName && withoutDriver(agent) {
			area.OK(plugin, "it has no block, and Nomad does not load it: tasks get their GPUs through other drivers")
			continue
		}
		h.diagnosePlugin(ctx, plugin, filepath.Join(h.root, dir, plugin), area)
		if !slices.Contains(agent.Plugins, plugin) {
			area.Fail(plugin, "write plugin \""+plugin+"\" { config {} }", "the agent's configuration has no block for it: Nomad does not load it")
		}
	}
	for _, rival := range rivals {
		if !slices.Contains(agent.Plugins, rival) {
			continue // Nomad does not load it
		}
		if _, err := os.Stat(filepath.Join(h.root, dir, rival)); err == nil {
			area.Fail(rival, "take its block out of the configuration and restart Nomad", "it offers the same GPUs as "+device.Name+": Nomad would hand them out twice")
		} else {
			area.Warn(rival, "take its block out of the configuration", "it has a block, and no program in %s", dir)
		}
	}
}

// withoutDriver reports whether a node has the device plugin alone, for docker and other
// drivers. From 1.10 on, Nomad loads no plugin that has no block.
func withoutDriver(agent agentconfig.Agent) bool {
	return slices.Contains(agent.Plugins, device.Name) && !slices.Contains(agent.Plugins, driverconfig.PluginName)
}

func (h host) diagnosePlugin(ctx context.Context, plugin, path string, area *doctor.Area) {
	line, err := h.run(ctx, path, "version")
	fields := strings.Fields(line)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		area.Fail(plugin, "install the package nomad-gpu-plugins, or copy the program there", "there is no %s", path)
	case err != nil || len(fields) < 2:
		area.Fail(plugin, "install it again, for this machine's architecture", "%s does not run: %v", path, err)
	case fields[1] != version.String():
		area.Warn(plugin, "install all programs of one release", "%s is %s, and this program %s", path, fields[1], version.String())
	default:
		area.OK(plugin, "%s", line)
	}
}

// diagnoseDocker looks at Docker where it is: tasks of its driver need NVIDIA's runtime.
func (h host) diagnoseDocker(ctx context.Context, area *doctor.Area) {
	const check = "runtime nvidia"
	text, err := h.run(ctx, "docker", "info", "--format", "{{json .Runtimes}}")
	if errors.Is(err, exec.ErrNotFound) {
		return
	}
	runtimes := map[string]any{}
	if err == nil {
		err = json.Unmarshal([]byte(text), &runtimes)
	}
	switch _, nvidia := runtimes["nvidia"]; {
	case err != nil:
		area.Warn(check, "systemctl status docker, or remove it where no job needs it", "Docker does not tell its runtimes: %v", err)
	case !nvidia:
		area.Warn(check, "nvidia-ctk runtime configure --runtime=docker, and docs/any-driver.md", "Docker has none: tasks of the docker driver that ask for a GPU do not start")
	default:
		area.OK(check, "Docker has it")
	}
}
