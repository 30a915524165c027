// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// logged gives a loop a log that can be read.
func logged(l *Loop) *strings.Builder {
	var text strings.Builder
	l.Logger = hclog.New(&hclog.LoggerOptions{Output: &text})
	return &text
}

func TestAFailureIsLoggedOncePerReason(t *testing.T) {
	one, other := errors.New("one reason"), errors.New("another")
	every := func(n int, err error) []error {
		list := make([]error, n)
		for i := range list {
			list[i] = err
		}
		return list
	}
	for name, row := range map[string]struct {
		every time.Duration
		said  []error
		want  int
	}{
		"never":                            {time.Second, every(10, nil), 0},
		"the same":                         {pause, every(10, one), 1},
		"another reason":                   {pause, append(every(5, one), every(5, other)...), 2},
		"it went well in between":          {pause, append(append(every(5, one), nil), every(5, one)...), 2},
		"it is forgotten where it is over": {2 * time.Minute, every(3, one), 3},
		"it is said again after an hour":   {50 * time.Second, every(2*73, one), 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				l := newLoop(w)
				text := logged(l)
				l.begin()
				for _, err := range row.said {
					l.round(t.Context())
					l.report("revise job default/j", err)
					time.Sleep(row.every)
				}
				if got := strings.Count(text.String(), "could not revise job default/j"); got != row.want {
					t.Errorf("logged %d times, want %d:\n%s", got, row.want, text)
				}
			})
		})
	}
}

// A job that waits for its quota and is scaled around the service can come to ask for more
// than its queue can ever pay for.
func TestAJobThatCanNeverBePaidForIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 3, 2, modelConfig)
		text := logged(h.loop)
		h.submit(t.Context(), wholeOf("a", 1, "50"))
		held := strings.Replace(string(wholeOf("a", 2, "50")), `"Count": 1`, `"Count": 2`, 1)
		h.submit(t.Context(), json.RawMessage(strings.Replace(held, `"batch"`, `"service"`, 1)))
		h.seconds(5)
		h.scale(h.jobs["a/j2"], 3)
		h.seconds(120)
		if got := strings.Count(text.String(), "could not revise job a/j2"); got != 1 {
			t.Errorf("logged %d times in two minutes, want once:\n%s", got, text)
		}
	})
}
