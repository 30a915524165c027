// SPDX-License-Identifier: MPL-2.0

// Package dcmi builds the library that stands in for Huawei's libdcmi.so on simulated
// machines: a shared library as the original is, opened in the same way. It takes a C
// compiler, which whoever builds the device plugin has.
package dcmi

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/device/dcmi"
)

//go:embed library/libdcmi.c
var source []byte

// Build makes the library in a folder, and returns its path. Flags are more of the
// compiler's: "-DOLD_DRIVER" leaves out what drivers before 2024 do not have.
func Build(dir string, flags ...string) (string, error) {
	c, library := filepath.Join(dir, "libdcmi.c"), filepath.Join(dir, "libdcmi.so")
	for path, text := range map[string][]byte{c: source, filepath.Join(dir, "structures.h"): dcmi.Structures} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return "", fmt.Errorf("build the simulated libdcmi.so: %w", err)
		}
	}
	build := exec.Command("cc", append([]string{"-shared", "-fPIC", "-O2", "-o", library, c, "-ldl", "-lpthread"}, flags...)...)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the simulated libdcmi.so: %w: %s", err, out)
	}
	return library, nil
}

// Once builds the library in a temporary folder, once for a process: for tests.
var Once = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nomad-gpu-dcmi")
	if err != nil {
		return "", err
	}
	return Build(dir)
})
