// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
)

// removed stands where a secret was.
const removed = "(removed)"

// secretName is how what holds a secret is called, in the environment, in
// configurations and in logs.
const secretName = `[A-Za-z0-9_.-]*(?:token|passw(?:or)?d|secret|credential|authorization|api_?key|private_?key)[A-Za-z0-9_.-]*`

var (
	secretKey = regexp.MustCompile(`(?i)^` + secretName + `$`)
	// assignment is a secret beside its name: KEY=value, "key": "value", key = "value",
	// Authorization: Bearer value.
	assignment = regexp.MustCompile(`(?i)(` + secretName + `\\?["']?\s*[:=]\s*)(\\"[^"\\]*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|(?:Bearer|Basic)\s+\S+|[^\s",;{}\[\]]+)`)
	userinfo   = regexp.MustCompile(`(://[^\s/:@"']+:)[^\s/@"']+@`)
	pemBlock   = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`)
)

// leastSecret is the shortest value that is looked for everywhere: shorter ones are
// words of every text.
const leastSecret = 6

// scrubber removes secrets from text: those that stand beside a name that says so,
// and those whose values are known.
type scrubber struct{ known []string }

// newScrubber knows the secrets of this process's environment and those given.
func newScrubber(known ...string) scrubber {
	for _, entry := range os.Environ() {
		if key, value, _ := strings.Cut(entry, "="); secretKey.MatchString(key) {
			known = append(known, value)
		}
	}
	known = slices.DeleteFunc(known, func(v string) bool { return len(v) < leastSecret })
	// A secret that another begins with must not leave the rest of it.
	slices.SortFunc(known, func(a, b string) int { return len(b) - len(a) })
	return scrubber{known}
}

func (s scrubber) scrub(text string) string {
	for _, value := range s.known {
		text = strings.ReplaceAll(text, value, removed)
	}
	text = pemBlock.ReplaceAllString(text, removed)
	text = userinfo.ReplaceAllString(text, "${1}"+removed+"@")
	return assignment.ReplaceAllString(text, `${1}"`+removed+`"`)
}
