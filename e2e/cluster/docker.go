// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// ErrNoDocker says that this machine has no Docker engine.
var ErrNoDocker = errors.New("dockerd is not installed (e2e/prepare tests unpacks Debian's)")

// dockerClientConfig lets jobs mount the directories of MPS daemons.
const dockerClientConfig = `
plugin "docker" {
  config {
    volumes {
      enabled = true
    }
  }
}
`

// toolkitConfig makes NVIDIA's container runtime take devices from the specs that
// the plugin generates, as docs/any-driver.md says. It takes their directory.
const toolkitConfig = `
[nvidia-container-runtime]
mode     = "cdi"
runtimes = ["runc"]
[nvidia-container-runtime.modes.cdi]
default-kind = "nomad-gpu/nvidia"
spec-dirs    = [%q]
`

// DockerProgram finds "dockerd" or "docker": where prepare unpacked it into bin, or
// on PATH.
func DockerProgram(bin, name string) (string, error) {
	for _, dir := range []string{"usr/sbin", "usr/bin"} {
		path := filepath.Join(bin, "e2e", "docker", dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", ErrNoDocker
}

// StartDocker starts a Docker engine on the machine's containerd, with NVIDIA's
// container runtime and the cluster's image. It has no network: its containers get
// none, or the host's.
func (n *Node) StartDocker(ctx context.Context) error {
	dockerd, err := DockerProgram(n.cluster.options.Bin, "dockerd")
	if err != nil {
		return err
	}
	config, err := n.dockerConfig()
	if err != nil {
		return err
	}
	ended, err := n.machine.start(n.Log("dockerd"), nil, dockerd, "--config-file", config)
	if err != nil {
		return err
	}
	return retry(ctx, "wait for dockerd", ended, n.Log("dockerd"), func() error { return n.importForDocker(ctx) })
}

// dockerConfig writes what configures the engine and NVIDIA's runtime below it.
func (n *Node) dockerConfig() (string, error) {
	dir := filepath.Join(n.dir, "docker")
	toolkit := filepath.Join(dir, "nvidia-container-runtime")
	if err := os.MkdirAll(toolkit, 0o755); err != nil {
		return "", fmt.Errorf("configure docker: %w", err)
	}
	specs := filepath.Join(statedir.Default, "cdi")
	runtime := filepath.Join(dir, "nvidia")
	script := fmt.Sprintf("#!/bin/sh\nXDG_CONFIG_HOME=%s exec %s \"$@\"\n", dir, filepath.Join(n.cluster.options.Bin, "e2e", "nvidia-container-runtime"))
	engine, err := json.MarshalIndent(map[string]any{
		"data-root": filepath.Join(dir, "data"), "exec-root": "/run/docker", "pidfile": "/run/docker.pid", "hosts": []string{"unix:///run/docker.sock"},
		"containerd": containerdSocket, "containerd-namespace": taskCgroup(n.dir) + ".docker", "containerd-plugins-namespace": taskCgroup(n.dir) + ".docker-plugins",
		"storage-driver": "vfs", "cgroup-parent": "/" + taskCgroup(n.dir), "exec-opts": []string{"native.cgroupdriver=cgroupfs"},
		"bridge": "none", "iptables": false, "ip-forward": false, "ip-masq": false,
		"runtimes": map[string]any{"nvidia": map[string]string{"path": runtime}},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "daemon.json")
	err = errors.Join(os.WriteFile(path, engine, 0o600), os.WriteFile(runtime, []byte(script), 0o755),
		os.WriteFile(filepath.Join(toolkit, "config.toml"), fmt.Appendf(nil, toolkitConfig, specs), 0o644))
	return path, err
}

func (n *Node) importForDocker(ctx context.Context) error {
	docker, err := DockerProgram(n.cluster.options.Bin, "docker")
	if err != nil {
		return err
	}
	layer, changes, err := ImageImport(n.cluster.options.Bin)
	if err != nil {
		return err
	}
	argv := append([]string{docker, "--host", "unix:///run/docker.sock", "import"}, changes...)
	_, err = n.Command(ctx, bytes.NewReader(layer), append(argv, "-", Image)...)
	return err
}
