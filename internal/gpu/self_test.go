// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"strings"
	"testing"
)

func TestPartsOfAGPUInWords(t *testing.T) {
	for text, want := range map[string]int64{"0.6": 600, "0.001": 1, "1": 1000, "1.000": 1000, "0.25": 250, "0.999": 999, "600": 600, "2": 2, "1000": 1000, "60": 60,
		"0": 0, "0.0": 0, "1.001": 0, "0.6001": 0, ".5": 0, "0.": 0, "": 0, "1001": 0, "050": 0, "50%": 0, "-0.5": 0, "+0.5": 0, "0.-5": 0, "0.5x": 0, "1e0": 0, "0.5.5": 0, "0,5": 0} {
		got, err := ParseMilli(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("ParseMilli(%q) = %d, %v", text, got, err)
		}
		if again, err := ParseMilli(FormatMilli(want)); want > 0 && (err != nil || again != want) {
			t.Errorf("%d becomes %q", want, FormatMilli(want))
		}
	}
}

func TestRequestsOfATask(t *testing.T) {
	for line, want := range map[string]string{
		`{"version":1,"action":"saved"}`:                                                              "",
		`{"version":1,"action":"resize","resize":{"compute_milli":600}}` + "\n":                       "",
		`{"version":1,"action":"status","action":"yield"}`:                                            "duplicate field",
		`{"version":1,"action":"status","Action":"yield"}`:                                            "unknown field",
		`{"version":1,"ACTION":"status"}`:                                                             "unknown field",
		`{"version":1,"action":"resize","resize":{"compute_milli":1,"Compute_Milli":900}}`:            "unknown field",
		`{"version":1,"action":"resize","resize":{"compute_milli":1},"resize":{"compute_milli":900}}`: "duplicate field",
		"{\"version\":1,\"action\":\"status\xff\"}":                                                   `is not valid (one of [status`,
		`{"version":1,"action":"status"}{"version":1,"action":"yield"}`:                               "is not valid (one line of JSON",
		`null`:                            "version 0 is not valid",
		`{"version":1,"action":"resize"}`: `action "resize" is not valid (resize names compute_milli`,
		`{"version":1,"action":"resize","resize":{}}`:                            `action "resize" is not valid (resize names compute_milli`,
		`{"version":1,"action":"yield","resize":{"compute_milli":1}}`:            `action "yield" is not valid`,
		`{"version":1,"action":"resize","resize":{"compute_milli":0.5}}`:         "is not valid (one line of JSON",
		`{"version":1,"action":"resize","resize":{"slices":[1]}}`:                "unknown field",
		`{"version":1,"action":"resize","resize":{"compute_milli":1}} trailing`:  "nothing after it",
		`{"version":1,"action":"resize","resize":{"compute_milli":1e30}}` + "\n": "is not valid (one line of JSON",
	} {
		_, err := ParseSelfRequest([]byte(line))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func FuzzParseSelfRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"action":"resize","resize":{"compute_milli":600,"memory_limit_mib":12}}`))
	f.Add([]byte("{}\x00"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := ParseSelfRequest(line)
		if err == nil && (r.Version != SelfVersion || (r.Action == SelfResizeAction) != (r.Resize != nil && *r.Resize != SelfResize{})) {
			t.Errorf("%q is read as %+v", line, r)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%q: the error has %d bytes", line, len(err.Error()))
		}
	})
}
