// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/shoenig/test/must"
)

// When a shim dies, containerd may notice between any two of our questions: the
// record is then gone, which is what was wanted.
func TestUntilDeleted(t *testing.T) {
	dead := fmt.Errorf("kill: %w", ttrpc.ErrClosed)
	broken := errors.New("disk full")
	tests := map[string]struct {
		answers []error // the last one is given for ever
		record  bool
		err     error
	}{
		"killed":                                   {[]error{nil}, true, nil},
		"gone since the first question":            {[]error{errdefs.ErrNotFound}, false, nil},
		"killed after the shim's death":            {[]error{dead, nil}, true, nil},
		"gone while the shim's death was unknown":  {[]error{dead, dead, errdefs.ErrNotFound}, false, nil},
		"containerd never notices":                 {[]error{dead}, false, ttrpc.ErrClosed},
		"something else than a shim's death fails": {[]error{dead, broken}, false, broken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, began := 0, time.Now()
				record, err := untilDeleted(t.Context(), func(context.Context) error {
					answer := tt.answers[min(asked, len(tt.answers)-1)]
					asked++
					return answer
				})
				must.Eq(t, tt.record, record)
				if tt.err == nil {
					must.NoError(t, err)
				} else {
					must.ErrorIs(t, err, tt.err)
				}
				if errors.Is(tt.err, ttrpc.ErrClosed) {
					must.Eq(t, 10*time.Second+20*time.Millisecond, time.Since(began))
				} else {
					must.Eq(t, len(tt.answers), asked)
				}
			})
		})
	}
}

func TestUntilDeleted_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := untilDeleted(ctx, func(context.Context) error { return ttrpc.ErrClosed })
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.Eq(t, time.Second, time.Since(began))
	})
}
