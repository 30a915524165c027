// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

func TestOldestSafeRunc(t *testing.T) {
	for _, test := range []struct {
		version, build string
		want           runcSafety
	}{
		{"1.1.5+ds1", "1.1.5+ds1-1+deb12u1", runcUnknown},
		{"1.1.12-0ubuntu2~22.04.1", "", runcUnknown},
		{"1.1.5", "v1.1.5-0-gf19387a6", runcUnsafe},
		{"1.1.15", "v1.1.15-0-gbc20cb44", runcUnsafe},
		{"1.2.7", "v1.2.7-0-g6f8b2ee1", runcUnsafe},
		{"1.2.8", "", runcSafe},
		{"1.2.10", "", runcSafe},
		{"1.3.0-rc.1", "", runcUnsafe},
		{"1.3.2", "", runcUnsafe},
		{"1.3.3", "", runcSafe},
		{"1.4.0-rc.2", "", runcUnsafe},
		{"1.4.0-rc.3", "", runcSafe},
		{"1.4.0", "", runcSafe},
		{"1.5.2", "", runcSafe},
		{"2.0.0", "", runcSafe},
		{"devel", "", runcUnknown},
	} {
		got, why := judgeRunc(runtime.RuncVersion{Version: test.version, Build: test.build})
		must.Eq(t, test.want, got, must.Sprint(test.version))
		must.Eq(t, got == runcSafe, why == "", must.Sprint(test.version))
	}
	_, why := judgeRunc(runtime.RuncVersion{Version: "1.1.5"})
	must.StrContains(t, why, "CVE-2024-21626")
}

// TestTrackerOfTheDistribution knows sources: what only was built anew from the same ones,
// as Debian's ending "+b4" says, has no entry of its own.
func TestTrackerOfTheDistribution(t *testing.T) {
	for _, test := range []struct{ version, build, source string }{
		{"1.1.15+ds1", "1.1.15+ds1-2+b4", "1.1.15+ds1-2"},
		{"1.1.5+ds1", "1.1.5+ds1-1+deb12u1", "1.1.5+ds1-1+deb12u1"},
		{"1.1.5+ds1", "1.1.5+ds1-1+deb12u1+b12", "1.1.5+ds1-1+deb12u1"},
		{"1.1.12-0ubuntu2~22.04.1", "", "1.1.12-0ubuntu2~22.04.1"},
	} {
		_, why := judgeRunc(runtime.RuncVersion{Version: test.version, Build: test.build})
		must.StrContains(t, why, "look for "+test.source+" in its security tracker")
	}
}

// TestFingerprintNamesTheRunc that containerd runs, which is not always the one on the
// driver's own PATH.
func TestFingerprintNamesTheRunc(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		own, err := e.driver.runtime.Runc(t.Context())
		must.NoError(t, err)
		safe, why := judgeRunc(own)
		f, _ := e.driver.fingerprint(t.Context())
		must.Eq(t, own.Version, f.Attributes["driver.containerd.runc_version"].GoString())
		must.Eq(t, string(safe), f.Attributes["driver.containerd.runc_safe"].GoString())
		if why != "" {
			must.StrContains(t, f.HealthDescription, why)
		}
	})
}
