// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, triggers := 0, 0
		c := newBackground(func() { triggers++ }, time.Now)
		outcome := errors.New("no")
		work := func() error {
			runs++
			time.Sleep(time.Second)
			return outcome
		}
		do := func(input string) (bool, error) { return c.do("job", input, time.Minute, work) }
		if done, err := do("a"); done || err != nil {
			t.Errorf("while it runs: %v, %v", done, err)
		}
		synctest.Wait()
		if done, err := do("a"); done || err != nil || runs > 1 {
			t.Errorf("while it runs: %v, %v, %d runs", done, err, runs)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if done, err := do("a"); done || err == nil || runs != 1 || triggers != 1 {
			t.Errorf("after a failure: %v, %v, %d runs, %d triggers", done, err, runs, triggers)
		}
		outcome = nil
		time.Sleep(time.Minute)
		if _, err := do("a"); err == nil {
			t.Error("the failure was forgotten before another attempt has ended")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if done, err := do("a"); !done || err != nil || runs != 2 {
			t.Errorf("after a success: %v, %v, %d runs", done, err, runs)
		}
		if done, err := do("b"); done || err != nil {
			t.Errorf("for another input: %v, %v", done, err)
		}
		c.wait()
	})
}
