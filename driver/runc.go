// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// runcSafety is the verdict on a runc by its version.
type runcSafety string

const (
	runcSafe    runcSafety = "yes"
	runcUnsafe  runcSafety = "no"
	runcUnknown runcSafety = "unknown"
)

// The oldest releases of runc, of each line, without a known way out of a container:
// they fix CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881, by which an image or a
// mount makes runc write into the host's /proc. Lines before 1.2 got no such release;
// before 1.1.12 there is CVE-2024-21626 as well, a descriptor of the host's that leaks
// into the container.
var oldestSafeRunc = map[[2]int]int{{1, 2}: 8, {1, 3}: 3, {1, 4}: 0}

const (
	newestRuncLine = 4
	// firstSafeRC is the release candidate of 1.4.0 with the fixes.
	firstSafeRC = 3
)

var runcRelease = regexp.MustCompile(`^v?(\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?`)

// judgeRunc tells what a version says. Distributions bring fixes into older releases;
// whether theirs has them only they can say.
func judgeRunc(v runtime.RuncVersion) (runcSafety, string) {
	parts := runcRelease.FindStringSubmatch(v.Version)
	if parts == nil {
		return runcUnknown, fmt.Sprintf("runc %q is not a version that is known here", v.Version)
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(parts[i]) // digits, or "" for none
		return n
	}
	major, minor, patch := number(1), number(2), number(3)
	oldest, known := oldestSafeRunc[[2]int{major, minor}]
	switch {
	case major > 1 || major == 1 && minor > newestRuncLine:
		return runcSafe, ""
	case known && patch > oldest, known && patch == oldest && parts[4] == "":
		return runcSafe, ""
	case minor == newestRuncLine && patch == oldest && number(4) >= firstSafeRC:
		return runcSafe, ""
	}
	why := fmt.Sprintf("runc %s is older than 1.2.8, 1.3.3 and 1.4.0, which fix ways out of a container (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", v.Version)
	if major < 1 || major == 1 && (minor < 1 || minor == 1 && patch < 12) {
		why += "; before 1.1.12 also CVE-2024-21626"
	}
	why += ")"
	if strings.ContainsAny(v.Version+v.Build, "+~") || strings.Contains(v.Build, "ubuntu") || strings.Contains(v.Build, ".el") || strings.Contains(v.Build, ".fc") {
		return runcUnknown, why + "; the distribution may have brought the fixes into it: look for " + sourceOf(v) + " in its security tracker"
	}
	return runcUnsafe, why + "; install a newer one"
}

// builtAnew is how Debian marks a package that was built again from the same source.
var builtAnew = regexp.MustCompile(`\+b\d+$`)

// sourceOf is the version of a runc as its distribution's security tracker names it.
func sourceOf(v runtime.RuncVersion) string {
	return builtAnew.ReplaceAllString(cmp.Or(v.Build, v.Version), "")
}

// runcCheck remembers what containerd's runc said, for a while: to ask starts a process.
type runcCheck struct {
	mu      sync.Mutex
	asked   time.Time
	version runtime.RuncVersion
	err     error
}

// runcCheckPeriod is how old an answer of runc's may be.
const runcCheckPeriod = 5 * time.Minute

func (c *runcCheck) get(ctx context.Context, r *runtime.Runtime) (runtime.RuncVersion, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked.IsZero() || time.Since(c.asked) > runcCheckPeriod {
		c.version, c.err = r.Runc(ctx)
		c.asked = time.Now()
	}
	return c.version, c.err
}
