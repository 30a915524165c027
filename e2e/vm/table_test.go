// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTableKeepsTheOtherSteps(t *testing.T) {
	kept := table{filepath.Join(t.TempDir(), "new", "debian-12.md")}
	at := time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC)
	for n, e := range []struct {
		step   string
		passed bool
	}{{"it boots", true}, {"a reboot", false}, {"a reboot", true}, {"it boots", true}} {
		if err := kept.enter(e.step, e.passed, at, time.Duration(n)*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	const want = tableHead + "| it boots | passed | 3s | 2026-11-22 13:00 |\n| a reboot | passed | 2s | 2026-11-22 13:00 |\n"
	if got, err := os.ReadFile(kept.path); err != nil || string(got) != want {
		t.Errorf("the table is %q, %v", got, err)
	}
}
