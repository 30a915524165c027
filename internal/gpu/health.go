// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"regexp"
	"time"
)

// Health is why an instance takes no new work, as Nomad carries it from the
// device plugin to whoever looks: one line of text. Exactly one of Cordon and
// Fault is set; of an instance that is healthy there is no text.
type Health struct {
	// Cordon is why no new work comes; what runs goes on.
	Cordon string
	// Fault is the device's fault.
	Fault Fault
}

const (
	cordonPrefix = "cordoned: "
	healthTime   = "2006-01-02 15:04:05 MST"
)

// String is the text:
//
//	cordoned: <why>
//	<code>: <message> (since 2026-01-02 03:04:05 UTC); <action>
func (h Health) String() string {
	switch {
	case h.Cordon != "":
		return cordonPrefix + h.Cordon
	case h.Fault.Code != "":
		return h.Fault.Code + ": " + h.Fault.Message + " (since " + h.Fault.Since.UTC().Format(healthTime) + "); " + h.Fault.Action
	default:
		return ""
	}
}

var (
	cordonText = regexp.MustCompile(`(?s)^` + cordonPrefix + `(.+)$`)
	faultText  = regexp.MustCompile(`(?s)^([a-z0-9][a-z0-9-]*): (.*) \(since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)\); (.*)$`)
)

// ParseHealth reads the text. Other device plugins write other texts: then the
// second result is false.
func ParseHealth(text string) (Health, bool) {
	if m := cordonText.FindStringSubmatch(text); m != nil {
		return Health{Cordon: m[1]}, true
	}
	m := faultText.FindStringSubmatch(text)
	if m == nil {
		return Health{}, false
	}
	since, err := time.Parse(healthTime, m[3])
	return Health{Fault: Fault{Code: m[1], Message: m[2], Since: since, Action: m[4]}}, err == nil
}
