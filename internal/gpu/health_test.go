// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"testing"
	"time"
)

func TestHealthIsReadAsItWasWritten(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, h := range map[string]Health{
		"cordoned: new fan":                                                            {Cordon: "new fan"},
		"cordoned: waits (since Monday); then goes":                                    {Cordon: "waits (since Monday); then goes"},
		"xid-48: it broke (since 2026-01-02 03:04:05 UTC); reset it":                   {Fault: Fault{Code: "xid-48", Message: "it broke", Action: "reset it", Since: since}},
		"gpu-lost: cordoned: (since then); no (since 2026-01-02 03:04:05 UTC); a; b":   {Fault: Fault{Code: "gpu-lost", Message: "cordoned: (since then); no", Action: "a; b", Since: since}},
		"mps-not-ready: a line\nand another (since 2026-01-02 03:04:05 UTC); wait\nok": {Fault: Fault{Code: "mps-not-ready", Message: "a line\nand another", Action: "wait\nok", Since: since}},
	} {
		if got := h.String(); got != text {
			t.Errorf("%+v is %q, want %q", h, got, text)
		}
		if got, ok := ParseHealth(text); !ok || got != h {
			t.Errorf("%q is read as %+v, %v", text, got, ok)
		}
	}
	if text := (Health{}).String(); text != "" {
		t.Errorf("nothing wrong is %q", text)
	}
	for _, foreign := range []string{"", "cordoned", "cordoned: ", "the GPU is cordoned: by someone", "XID 79", "xid-48: it broke; reset it",
		"xid-48: it broke (since 2026-13-02 03:04:05 UTC); reset it"} {
		if got, ok := ParseHealth(foreign); ok {
			t.Errorf("%q is read as %+v", foreign, got)
		}
	}
}

func FuzzParseHealth(f *testing.F) {
	f.Add("cordoned: new fan")
	f.Add("xid-48: it broke (since 2026-01-02 03:04:05 UTC); reset it")
	f.Fuzz(func(t *testing.T, text string) {
		if h, ok := ParseHealth(text); ok && h.String() != text {
			t.Fatalf("%q became %q", text, h.String())
		}
	})
}
