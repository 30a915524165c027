// SPDX-License-Identifier: MPL-2.0

// Package version says which build of the product a program is. The plugins and
// the placement service share one version.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// release is set by the build, with -ldflags "-X …/internal/version.release=1.2.3".
var release string

// unknown is what a build without a version says: a test, or one without Git.
const unknown = "0.0.0"

// String is the version, such as "1.2.3" or "1.2.3+5fe9d2c", in a form that Nomad
// can parse; it refuses a plugin with another. Built by hand it is what Go knows:
// the version of the module, or one made of the commit.
func String() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	return ofModule(info.Main.Version)
}

func ofModule(version string) string {
	number, found := strings.CutPrefix(version, "v")
	if !found { // "(devel)", or nothing
		return unknown
	}
	return number
}

// Line is a program's answer to "version": its name, the version, and the toolchain
// and platform that it was built with and for.
func Line(program string) string {
	return fmt.Sprintf("%s %s (%s, %s/%s)", program, String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
