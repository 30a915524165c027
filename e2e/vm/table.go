// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// table is a file with the last result of each step, as a table in Markdown. Runs take
// hours and choose their steps, so every step is entered when it has ended, and the other
// lines stay.
type table struct{ path string }

const tableHead = "| step | result | took | at (UTC) |\n|---|---|---|---|\n"

func (t table) enter(step string, passed bool, began time.Time, took time.Duration) error {
	text, err := os.ReadFile(t.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the table of results: %w", err)
	}
	result := map[bool]string{true: "passed", false: "**failed**"}[passed]
	line := fmt.Sprintf("| %s | %s | %s | %s |\n", step, result, took, began.UTC().Format("2006-01-02 15:04"))
	lines, known := strings.TrimPrefix(string(text), tableHead), false
	out := tableHead
	for old := range strings.Lines(lines) {
		if strings.HasPrefix(old, "| "+step+" |") {
			old, known = line, true
		}
		out += old
	}
	if !known {
		out += line
	}
	if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
		return fmt.Errorf("write the table of results: %w", err)
	}
	return os.WriteFile(t.path, []byte(out), 0o644)
}
