// SPDX-License-Identifier: MPL-2.0

package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A setting that changes nothing is named, and no other is.
func TestSettingsWithoutEffect(t *testing.T) {
	for text, want := range map[string]string{
		"": "", `slice_memory = "2GiB"`: `slice_memory has no effect without mode "slice"`,
		"slice_memory = \"2GiB\"\ngpu { mode = \"slice\" }":                                       "",
		"slice_memory = \"2GiB\"\ngpu {\n mode = \"mig\"\n mig { mode = \"slice\" }\n}":           "",
		"mode = \"slice\"\ngpu {\n mode = \"shared\"\n replicas = 2\n headroom = \"1GiB\"\n}":     `gpu[0].headroom has no effect without mode "slice"`,
		"gpu {\n mode = \"mig\"\n mig { replicas = 2 }\n}":                                        `gpu[0].mig[0].replicas has no effect without mode "shared"`,
		"mode = \"shared\"\nsharing = \"mps\"\ntimeslice = \"long\"":                              `timeslice has no effect without sharing "timeslice"`,
		"mps { static_partitioning = true }":                                                      "mps { } has no effect: nothing here shares GPUs through MPS",
		"mode = \"slice\"\nmps { static_partitioning = true }":                                    "",
		"hami { library = \"/x\" }":                                                               `hami { } has no effect: nothing here has sharing "hami"`,
		"suspend { host_memory = \"1GiB\" }":                                                      `suspend { } has no effect`,
		`health { ignore = ["xid-63", "ecc-remap-pending", "npu-0a0b0c0d", "ras-umc", "xid63"] }`: `health.ignore[4] has no effect: no fault has the code "xid63"`,
	} {
		c, err := configOf(t, text)
		if err != nil {
			t.Fatal(text, err)
		}
		if got := strings.Join(c.Idle, "; "); got != want && (want == "" || !strings.HasPrefix(got, want) || len(c.Idle) != 1) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// Every code that a fault is given is known to the configuration.
func TestFaultCodesAreKnown(t *testing.T) {
	files, err := filepath.Glob("../*/*.go")
	if err != nil || len(files) < 100 {
		t.Fatal(len(files), err)
	}
	literal := regexp.MustCompile(`\bCode(?:[A-Z][a-z]+)?\s*[:=]\s*"([a-z0-9-]+)"`)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			if found++; !faultCodes[m[1]] && !numberedFaults.MatchString(m[1]+"x") && !numberedFaults.MatchString(m[1]) {
				t.Errorf("%s: code %q is not among the known ones", file, m[1])
			}
		}
	}
	if found < 40 {
		t.Errorf("%d codes are found", found)
	}
}
