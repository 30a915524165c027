// SPDX-License-Identifier: MPL-2.0

package subcommand

import (
	"strings"
	"testing"
)

func TestMemoryLimitsCommandRefuses(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{nil, "want DRIVER, UUID, CGROUP"},
		{[]string{"{", "GPU-1", "/g", "1", "2"}, `read "{"`},
		{[]string{"{}", "GPU-1", "/g", "x", "2"}, "read amounts"},
		{[]string{"{}", "GPU-1", "/g", "1", "y"}, "read amounts"},
		{[]string{`{"simulation":{"Topology":"/nonexistent"}}`, "GPU-1", "/g", "1", "2"}, "/nonexistent"},
	} {
		if err := RunMemoryLimits(tc.args); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: %v", tc.args, err)
		}
	}
}
