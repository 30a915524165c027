// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"os"
	"testing"
)

// TestAPanicIsTold with its cause: to the commands that it ends, a machine is only silent.
func TestAPanicIsTold(t *testing.T) {
	for console, want := range map[string]string{
		"": "",
		"login: [ 5.1] Memory cgroup out of memory: Killed process 8983 (tail)\n":                                                              "",
		"login:\n[ 5.1] Oops: int3: 0000 [#1]\n[ 5.1] RIP: 0010:x\n[ 5.2] Kernel panic - not syncing: Fatal exception\n[ 5.2] Shutting down\n": "[ 5.1] Oops: int3: 0000 [#1]\n[ 5.1] RIP: 0010:x\n[ 5.2] Kernel panic - not syncing: Fatal exception",
		"[ 0.1] Run /init\n[ 0.2] Kernel panic - not syncing: VFS: Unable to mount root fs\n":                                                  "[ 0.2] Kernel panic - not syncing: VFS: Unable to mount root fs",
	} {
		m := &Machine{dir: t.TempDir()}
		if err := os.WriteFile(m.console(), []byte(console), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.panicked(); got != want {
			t.Errorf("of %q the panic is %q, want %q", console, got, want)
		}
	}
	if got := (&Machine{dir: t.TempDir()}).panicked(); got != "" {
		t.Errorf("of no console the panic is %q", got)
	}
}
