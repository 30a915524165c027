package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProbeCommand {
		if err := Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// On a machine with a GPU this is a real probe; on one without, it shows that
// the lack of a driver is an error and nothing worse.
func TestProbe(t *testing.T) {
	err := Probe("/proc/self/exe", "", "", time.Minute)
	if _, openErr := Open(0); errors.Is(openErr, ErrUnavailable) {
		if err == nil || !strings.Contains(err.Error(), "CUDA is not available") {
			t.Errorf("without CUDA: %v", err)
		}
		return
	}
	t.Logf("with CUDA: %v", err)
}

func TestProbeDoesNotWaitForever(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hang")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Probe(path, "GPU-1", "", 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not come back") {
		t.Errorf("got %v", err)
	}
}

func TestExpected(t *testing.T) {
	if got := expected(2, 3); got != ((2*2+3)*(2*2+3)+3)*((2*2+3)*(2*2+3)+3)+3 {
		t.Errorf("got %d", got)
	}
}
