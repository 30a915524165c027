// SPDX-License-Identifier: MPL-2.0

package main

import "testing"

func TestTimesInWords(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0 s", 0.4: "0 s", 119.4: "119 s", 119.6: "2 min", 120: "2 min", 7199: "120 min", 7200: "2 h 0 min", 10630: "2 h 57 min",
		172769: "47 h 59 min", 172770: "2 d 0 h", 172800: "2 d 0 h", 273600: "3 d 4 h",
	} {
		if got := words(seconds); got != want {
			t.Errorf("%v s is %q, want %q", seconds, got, want)
		}
	}
}
