// SPDX-License-Identifier: MPL-2.0

package nvidia

import "testing"

func TestReplacedLibraryIsSeen(t *testing.T) {
	const (
		there = "7f1c0000-7f1d0000 r-xp 00000000 08:01 42 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03\n"
		gone  = "7f1c0000-7f1d0000 r-xp 00000000 08:01 42 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03 (deleted)\n"
		other = "7f2c0000-7f2d0000 rw-s 00000000 00:01 43 /dev/zero (deleted)\n"
	)
	for maps, want := range map[string]bool{"": false, there: false, there + other: false, other + gone: true} {
		if got := deletedLibrary(maps); got != want {
			t.Errorf("deletedLibrary(%q) = %v", maps, got)
		}
	}
	if (&Backend{}).replaced() {
		t.Error("a library that is not loaded was replaced")
	}
}
