// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

const containerdSocket = "/run/containerd/containerd.sock"

// StartContainerd starts the machine's container runtime and gives it the image.
func (n *Node) StartContainerd(ctx context.Context) error {
	program, err := n.containerdProgram()
	if err != nil {
		return err
	}
	version, err := configVersion(ctx, program)
	if err != nil {
		return err
	}
	path := filepath.Join(n.dir, "containerd.toml")
	config := fmt.Sprintf(containerdConfigs[version], filepath.Join(n.dir, "containerd"))
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	// containerd finds its shim on PATH, and another release's shim fails.
	env := "PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH")
	ended, err := n.machine.start(n.Log("containerd"), []string{env}, program, "--config", path)
	if err != nil {
		return err
	}
	return retry(ctx, "wait for containerd", ended, n.Log("containerd"), func() error { return n.importImages(ctx) })
}

func (n *Node) containerdProgram() (string, error) {
	if dir := n.cluster.options.Containerd; dir != "" {
		return filepath.Join(dir, "containerd"), nil
	}
	program, err := exec.LookPath("containerd")
	if err != nil {
		return "", fmt.Errorf("start containerd: %w; install Debian's package \"containerd\"", err)
	}
	return program, nil
}

// configVersion is the newest version of the configuration file that the
// program reads: 3 since containerd 2.0.
func configVersion(ctx context.Context, program string) (int, error) {
	output, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version: %w", program, err)
	}
	for _, word := range strings.Fields(string(output)) {
		if strings.HasPrefix(strings.TrimPrefix(word, "v"), "1.") {
			return 2, nil
		}
	}
	return 3, nil
}

func (n *Node) importImages(ctx context.Context) error {
	client, err := containerd.New(n.machine.path(containerdSocket))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx = namespaces.WithNamespace(ctx, taskCgroup(n.dir))
	for _, image := range append([][]byte{n.cluster.image}, n.cluster.options.Images...) {
		if _, err := client.Import(ctx, bytes.NewReader(image)); err != nil {
			return err
		}
	}
	return nil
}
