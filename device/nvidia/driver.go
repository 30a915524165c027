// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Driver says where NVIDIA's driver lies. On most machines that is where the
// distribution puts libraries; the GPU operator keeps it in a container's root,
// and some systems in directories of their own.
type Driver struct {
	// Root is the root of the file system that the driver was installed into.
	Root string
	// DevRoot has the device nodes, below dev; empty is Root, or "/" where that has
	// none.
	DevRoot string
	// LibraryPaths are more directories to look for its libraries in.
	LibraryPaths []string
}

// libraryDirs are where distributions put libraries, below the root.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib",
	"usr/local/nvidia/lib64", "nvidia/lib64", "usr/local/glibc/usr/lib", // COS and Talos
}

// programDirs are where it may have put programs, below the root.
var programDirs = []string{"usr/bin", "bin", "usr/sbin", "sbin", "usr/local/bin", "usr/local/nvidia/bin"}

const (
	managementLibrary = "libnvidia-ml.so.1"
	cudaLibrary       = "libcuda.so.1"
)

// usual reports whether nothing needs to be searched for.
func (d Driver) usual() bool { return d.root() == "/" && len(d.LibraryPaths) == 0 }

func (d Driver) root() string {
	if d.Root == "" {
		return "/"
	}
	return d.Root
}

// devRoot is where the device nodes are: a driver's root without any has them on
// the host.
func (d Driver) devRoot() string {
	if d.DevRoot != "" {
		return d.DevRoot
	}
	if _, err := os.Stat(filepath.Join(d.root(), "dev", "nvidiactl")); err == nil {
		return d.root()
	}
	return "/"
}

// find looks for a file in directories, the given ones first.
func (d Driver) find(name string, first, below []string) string {
	dirs := append([]string{}, first...)
	for _, dir := range below {
		dirs = append(dirs, filepath.Join(d.root(), dir))
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Library opens the driver's management library.
func (d Driver) Library() nvml.Interface {
	if path := d.find(managementLibrary, d.LibraryPaths, libraryDirs); !d.usual() && path != "" {
		return nvml.New(nvml.WithLibraryPath(path))
	}
	return nvml.New() // the dynamic linker finds it
}

// LibraryPath is the LD_LIBRARY_PATH with which programs find the driver's
// libraries; empty where they do by themselves.
func (d Driver) LibraryPath() string {
	if d.usual() {
		return ""
	}
	dirs := append([]string{}, d.LibraryPaths...)
	for _, library := range []string{cudaLibrary, managementLibrary} {
		if path := d.find(library, nil, libraryDirs); path != "" {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return strings.Join(dirs, ":")
}

// Program finds a program of the driver by its name; a path stays a path, and
// so does a name that PATH is to find.
func (d Driver) Program(name string) string {
	if d.root() == "/" || strings.Contains(name, "/") {
		return name
	}
	if path := d.find(name, nil, programDirs); path != "" {
		return path
	}
	return name
}
