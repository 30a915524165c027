// SPDX-License-Identifier: MPL-2.0

package device

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"
)

// Without the library a task would have no limits, and without a directory for
// its locks it would not start: then its slices are not offered, and say why.
func TestHAMiIsReadyBeforeItsSlicesAre(t *testing.T) {
	r := newRig(t)
	library, locks := filepath.Join(r.dir, "libvgpu.so"), filepath.Join(r.dir, "new", "locks")
	r.start("../e2e/topology/t4.hcl", `
		mode    = "slice"
		sharing = "hami"
		hami {
			library  = "`+library+`"
			lock_dir = "`+locks+`"
		}`)
	unhealthy := func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/0"); return n == 0 }
	says := func(groups []*device.DeviceGroup, want string) {
		t.Helper()
		g, _ := find(groups, "slice/T4/0")
		if text := g.Devices[0].HealthDesc; !strings.HasPrefix(text, "hami-not-ready: ") || !strings.Contains(text, want) {
			t.Errorf("health description is %q, want %q", text, want)
		}
	}
	says(r.until("the library is missed", unhealthy), "hami.library: stat "+library)
	if err := os.WriteFile(library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.until("all is healthy", allHealthy)
	if info, err := os.Stat(locks); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("the lock directory: %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(locks, 0o755); err != nil {
		t.Fatal(err)
	}
	says(r.until("the directory is refused", unhealthy), "hami.lock_dir "+locks+" has mode drwxr-xr-x")
}
