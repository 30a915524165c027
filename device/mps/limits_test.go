// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

func TestMemoryIsTheSameAsRounded(t *testing.T) {
	for _, tc := range []struct {
		answer string
		mib    int64
		want   bool
	}{
		{"79G", 80896, true}, {"79G", 81559, true}, {"79G", 81920, false}, {"79G", 79 << 10, true}, {"78G", 80896, false},
		{"1G", 1500, true}, {"1G", 1024, true}, {"1G", 1023, false}, {"2G", 1500, false},
		{"512M", 512, true}, {"511M", 512, false}, {"80896M", 80896, true}, {"79872M", 80896, false},
		{"", 0, true}, {"0M", 0, true}, {"", 512, false}, {"0M", 512, false}, {"1G", 0, false}, {"none", 512, false}, {"none", 0, false},
	} {
		if got := mpsctl.SameMemory(tc.answer, tc.mib); got != tc.want {
			t.Errorf("sameMemory(%q, %d) = %t", tc.answer, tc.mib, got)
		}
	}
}

func TestParseMemory(t *testing.T) {
	for _, tc := range []struct {
		answer string
		want   int64
	}{
		{"8192M", 8192}, {"8192MB", 8192}, {"8G", 8192}, {"8589934592", 8192}, {"0x200000000", 8192}, {"8388608K", 8192},
		{"Device 0 limit 8192M", 8192}, {"0: 8192 MB", 8192}, {"8 GiB", 8192}, {"limit=8192m", 8192},
	} {
		if got, _, err := mpsctl.ParseMemory(tc.answer); err != nil || got != tc.want {
			t.Errorf("parseMemory(%q) = %d, %v; want %d", tc.answer, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "none", "M", "unlimited", "-8192M", "99999999999999999999"} {
		if got, _, err := mpsctl.ParseMemory(bad); err == nil {
			t.Errorf("parseMemory(%q) = %d", bad, got)
		}
	}
}

func FuzzParseMemory(f *testing.F) {
	for _, seed := range []string{"8192M", "8G", "0x200000000", "limit 8192M", "", "-1", "M"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if mib, _, err := mpsctl.ParseMemory(answer); err == nil && mib < 0 {
			t.Errorf("parseMemory(%q) = %d", answer, mib)
		}
	})
}

// limitsScript answers questions about limits, one line of "question=answer" each.
func limitsScript(t *testing.T, answers string) control {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "control")
	text := "#!/bin/sh\nread -r q\ncase \"$q\" in\n" + answers + "\n*) echo 'Unknown command';;\nesac\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return control{Control: mpsctl.Control{Program: script, PipeDir: filepath.Join(dir, "pipe"), Timeout: time.Minute}}
}

func TestLimitsAreConfirmed(t *testing.T) {
	const memory, percent = "get_default_device*) echo ", "get_default_active*) echo "
	for name, tc := range map[string]struct {
		answers string
		spec    Spec
		err     error
		says    string
	}{
		"as set":                         {memory + "79G;;\n" + percent + "80.0;;", Spec{MemoryMiB: 80896, Percent: 80}, nil, ""},
		"a little less":                  {memory + "79G;;\n" + percent + "79.6;;", Spec{MemoryMiB: 80896, Percent: 80}, nil, ""},
		"other memory":                   {memory + "78G;;\n" + percent + "80.0;;", Spec{MemoryMiB: 80896, Percent: 80}, errUntrue, `the memory limit of the daemon is "78G", not 80896M`},
		"memory where none is wanted":    {memory + "1G;;\n" + percent + "80.0;;", Spec{Percent: 80}, errUntrue, `"1G"`},
		"another percentage":             {memory + "79G;;\n" + percent + "79.4;;", Spec{MemoryMiB: 80896, Percent: 80}, errUntrue, `the thread percentage of the daemon is "79.4", not 80`},
		"no percentage":                  {memory + "79G;;\n" + percent + "none;;", Spec{MemoryMiB: 80896, Percent: 80}, errUntrue, `"none"`},
		"a branch without memory limits": {percent + "80.0;;", Spec{MemoryMiB: 80896, Percent: 80}, errNoMemoryLimits, ""},
		"where none is needed":           {percent + "80.0;;", Spec{Percent: 80}, nil, ""},
		"no answer about memory":         {"get_default_device*) exit 3;;\n" + percent + "80.0;;", Spec{Percent: 80}, nil, "exit status 3"},
		"no answer about the percentage": {memory + "79G;;\nget_default_active*) exit 3;;", Spec{MemoryMiB: 80896, Percent: 80}, nil, "exit status 3"},
	} {
		err := limitsScript(t, tc.answers).confirmLimits(t.Context(), daemonLimits, tc.spec)
		switch {
		case tc.err == nil && tc.says == "":
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case err == nil, tc.err != nil && !errors.Is(err, tc.err), !strings.Contains(err.Error(), tc.says):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsAreSetAndReadBack(t *testing.T) {
	const read = "get_default_device*) echo 8G;;\nget_default_active*) echo 80.0;;\n"
	want := Spec{MemoryMiB: 8192, Percent: 80}
	for name, tc := range map[string]struct {
		answers string
		err     error
		says    string
	}{
		"taken":                   {read + "set_default_device*8192M) true;;\nset_default_active*80) echo 80.0;;", nil, ""},
		"memory limits unknown":   {read + "set_default_active*) true;;", errNoMemoryLimits, ""},
		"memory limits refused":   {read + "set_default_device*) echo 'Insufficient privileges';;\nset_default_active*) true;;", mpsctl.ErrRefused, ""},
		"percentages refused":     {read + "set_default_device*) true;;\nset_default_active*) echo 'Insufficient privileges';;", mpsctl.ErrRefused, ""},
		"taken and not in effect": {"get_default_device*) echo 4G;;\nset_default_device*) true;;\nset_default_active*) true;;", errUntrue, "4G"},
	} {
		err := limitsScript(t, tc.answers).setLimits(t.Context(), daemonLimits, want)
		if tc.err == nil && err != nil || tc.err != nil && (!errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
