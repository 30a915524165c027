package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	lines, err := Of(os.Getpid())
	if err != nil || len(lines) == 0 {
		t.Fatalf("got %q, %v", lines, err)
	}
	for _, line := range lines {
		if strings.Count(line, ":") < 2 || strings.TrimSpace(line) != line {
			t.Errorf("%q is not a line of hierarchy:controllers:path", line)
		}
	}
	for _, pid := range []int{0, -1} {
		if lines, err := Of(pid); !errors.Is(err, fs.ErrNotExist) || lines != nil {
			t.Errorf("process %d: got %q, %v", pid, lines, err)
		}
	}
}
