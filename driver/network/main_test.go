// SPDX-License-Identifier: MPL-2.0

package network

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// aloneEnv tells this program that it runs on a network of its own.
const aloneEnv = "NOMAD_GPU_TEST_OWN_NETWORK"

// TestMain runs the tests where no bridges are but theirs. Where that cannot be, those
// that need it are skipped.
func TestMain(m *testing.M) {
	if os.Getenv(aloneEnv) != "" {
		if err := showOwnNetwork(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // with which the other would end
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	switch ended := (*exec.ExitError)(nil); {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &ended):
		os.Exit(max(1, ended.ExitCode()))
	}
	os.Exit(m.Run())
}

// showOwnNetwork has the kernel list the network of this program, and the CNI plugins
// keep what they made of it here alone.
func showOwnNetwork() error {
	const results = "/var/lib/cni"
	if err := os.MkdirAll(results, 0o711); err != nil {
		return err
	}
	return errors.Join(unix.Mount("sysfs", "/sys", "sysfs", 0, ""), unix.Mount("results", results, "tmpfs", 0, ""))
}

// alone skips a test that would see or change the machine's own bridges.
func alone(t *testing.T) {
	t.Helper()
	if os.Getenv(aloneEnv) == "" {
		t.Skip("a network of its own needs root")
	}
}

// ip runs the program of this name, with words that are separated by spaces.
func ip(t *testing.T, words ...string) {
	t.Helper()
	if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
		t.Fatalf("ip %q: %v: %s", words, err, out)
	}
}

// addBridge makes a bridge that is there until the test ends.
func addBridge(t *testing.T, name string, addresses ...string) {
	t.Helper()
	ip(t, "link", "add", "name", name, "type", "bridge")
	t.Cleanup(func() { ip(t, "link", "del", name) })
	for _, address := range addresses {
		ip(t, "addr", "add", address, "dev", name)
	}
}

// addMember connects something to a bridge.
func addMember(t *testing.T, bridge string) {
	t.Helper()
	ip(t, "link", "add", "name", "of-"+bridge, "type", "veth", "peer", "name", "to-"+bridge)
	ip(t, "link", "set", "dev", "of-"+bridge, "master", bridge)
	t.Cleanup(func() { ip(t, "link", "del", "of-"+bridge) })
}
