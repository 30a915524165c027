// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseTimeslice(t *testing.T) {
	for _, tc := range []struct{ out, want string }{
		{"+-----+\n| GPU 0  Timeslice: Default |\n+-----+", "default"},
		{"GPU 00000000:3B:00.0\n  Timeslice : Short", "short"},
		{"| 0 | timeslice | medium |", "medium"},
	} {
		if got, err := parseTimeslice(tc.out); err != nil || got != tc.want {
			t.Errorf("parseTimeslice(%q) = %q, %v", tc.out, got, err)
		}
	}
	for _, bad := range []string{"", "No devices were found", "Timeslice: eternal"} {
		if got, err := parseTimeslice(bad); err == nil {
			t.Errorf("parseTimeslice(%q) = %q", bad, got)
		}
	}
}

// script makes a program that stands in for nvidia-smi.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSMIRunsNvidiaSMI(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	s := SMI{Program: script(t, `echo "$@" >> `+log+"\necho Timeslice: Short\n")}
	if err := s.SetTimeslice("GPU-1", "short"); err != nil {
		t.Fatal(err)
	}
	if level, err := s.Timeslice("GPU-1"); err != nil || level != "short" {
		t.Errorf("got %q, %v", level, err)
	}
	got, err := os.ReadFile(log)
	if want := "compute-policy -i GPU-1 --set-timeslice 1\ncompute-policy -i GPU-1 -l\n"; err != nil || string(got) != want {
		t.Errorf("ran %q, want %q (%v)", got, want, err)
	}
	if err := s.SetTimeslice("GPU-1", "eternal"); err == nil {
		t.Error("an unknown length was set")
	}
}

func TestSMISaysWhatNvidiaSMISaid(t *testing.T) {
	s := SMI{Program: script(t, "echo Insufficient Permissions\nexit 4\n")}
	if _, err := s.Timeslice("GPU-1"); err == nil || !strings.Contains(err.Error(), "Insufficient Permissions") {
		t.Errorf("got %v", err)
	}
}
