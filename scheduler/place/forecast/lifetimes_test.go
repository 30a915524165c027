// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"fmt"
	"testing"
	"time"
)

// ran is lifetimes of a key, in minutes.
func ran(l *Lifetimes, key string, minutes ...int) *Lifetimes {
	for _, m := range minutes {
		l.Ended(time.Duration(m)*time.Minute, key)
	}
	return l
}

func TestLifetimesAreConditionedOnAge(t *testing.T) {
	l := ran(&Lifetimes{}, "size", 10, 50, 20, 40, 30)
	ran(l, "job", 200, 100, 400, 300)
	ran(l, "rare", 1, 2, 3)
	for name, c := range map[string]struct {
		age, limit int
		keys       []string
		at         [3]float64 // minutes, at 0, 0.5 and just below 1
	}{
		"all of them":                       {0, 0, []string{"size"}, [3]float64{10, 30, 50}},
		"those that ran longer":             {20, 0, []string{"size"}, [3]float64{10, 20, 30}},
		"just now":                          {49, 0, []string{"size"}, [3]float64{1, 1, 1}},
		"the job says more than the size":   {0, 0, []string{"job", "size"}, [3]float64{100, 300, 400}},
		"too few have ended":                {0, 0, []string{"rare", "size"}, [3]float64{10, 30, 50}},
		"older than its size":               {60, 0, []string{"size", "job"}, [3]float64{40, 240, 340}},
		"older than all":                    {400, 0, []string{"job", "size"}, [3]float64{100, 400, 1200}},
		"the limit bounds":                  {20, 45, []string{"size"}, [3]float64{10, 20, 25}},
		"ten times too long a limit":        {20, 500, []string{"size"}, [3]float64{10, 20, 30}},
		"a limit that is over says nothing": {20, 15, []string{"size"}, [3]float64{10, 20, 30}},
		"a limit alone":                     {20, 80, []string{"unknown"}, [3]float64{0, 30, 59.4}},
		"an age before its start":           {-5, 0, []string{"size"}, [3]float64{10, 30, 50}},
	} {
		left := l.Remaining(time.Duration(c.age)*time.Minute, time.Duration(c.limit)*time.Minute, c.keys...)
		for i, chance := range []float64{0, 0.5, 0.99} {
			if got := left.At(chance).Minutes(); !left.Known() || got < c.at[i]-1e-6 || got > c.at[i]+1e-6 {
				t.Errorf("%s: at %v it has %v minutes left, want %v", name, chance, got, c.at[i])
			}
		}
	}
	for name, left := range map[string]Remaining{
		"nothing known": l.Remaining(time.Minute, 0, "unknown"), "too few known": l.Remaining(time.Minute, 0, "rare"),
		"an old limit": l.Remaining(time.Hour, time.Minute, "unknown"), "at its limit": l.Remaining(time.Hour, time.Hour, "unknown"),
	} {
		if left.Known() {
			t.Errorf("%s: an end is known: %+v", name, left)
		}
	}
}

func TestLifetimesForgetWhatIsOld(t *testing.T) {
	l := &Lifetimes{}
	for i := range 3 * runsKept {
		ran(l, "job", 1000+i)
	}
	if got, want := l.Remaining(0, 0, "job").At(0).Minutes(), float64(1000+2*runsKept); got != want {
		t.Errorf("the shortest that is remembered is %v, want %v", got, want)
	}
	for i := range 3 * keysKept {
		ran(l, fmt.Sprint("other ", i), 1)
		ran(l, "job", 7)
		if len(l.runs) > keysKept {
			t.Fatalf("%d keys are kept", len(l.runs))
		}
	}
	if !l.Remaining(0, 0, "job").Known() || l.runs["other 0"] != nil || l.runs[fmt.Sprint("other ", 3*keysKept-1)] == nil {
		t.Error("not the keys were forgotten of which none has ended for the longest")
	}
}
