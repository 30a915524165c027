// SPDX-License-Identifier: MPL-2.0

package outlook

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Ranges that are always too narrow, or on one side of what happens, hold nine times of ten
// once as much has been learned; and after things changed, again.
func TestCalibrationMakesRangesHold(t *testing.T) {
	for name, waits := range map[string]func(rng *rand.Rand, likely float64) float64{
		"much later":         func(rng *rand.Rand, likely float64) float64 { return likely * (1 + 4*rng.Float64()) },
		"much sooner":        func(rng *rand.Rand, likely float64) float64 { return likely * rng.Float64() },
		"both, heavy-tailed": func(rng *rand.Rand, likely float64) float64 { return likely * rng.ExpFloat64() },
		"at once":            func(*rand.Rand, float64) float64 { return 0 },
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var c Calibration
		right, of := 0, 0
		for i := range 3000 {
			likely := 60 + 3600*rng.Float64()
			o := Outlook{true, seconds(likely * 0.9), seconds(likely), seconds(likely * 1.1)}
			told, waited := c.Correct(o), seconds(waits(rng, likely))
			if told.Soonest > told.Likely || told.Likely > told.Latest || told.Soonest < 0 {
				t.Fatalf("%s: a range that is none: %+v", name, told)
			}
			if i > lately {
				of++
				if told.Soonest <= waited && waited <= told.Latest {
					right++
				}
			}
			c.Learn(o, told, waited)
		}
		if part := float64(right) / float64(of); part < 0.88 || part > 0.97 && name != "at once" {
			t.Errorf("%s: %.3f of the ranges hold", name, part)
		}
		if held, of := c.Held(); of != lately || held < lately*8/10 {
			t.Errorf("%s: %d of %d are said to have held", name, held, of)
		}
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Until enough is known, and where nothing is, nothing is corrected.
func TestCalibrationWaitsForEnough(t *testing.T) {
	var c Calibration
	o := Outlook{true, time.Minute, time.Hour, 2 * time.Hour}
	for range calibrated - 1 {
		c.Learn(o, o, 10*time.Hour)
		c.Learn(Outlook{}, Outlook{}, time.Hour)
	}
	if got := c.Correct(o); got != o {
		t.Errorf("corrected to %+v by %d estimates", got, calibrated-1)
	}
	c.Learn(o, o, 10*time.Hour)
	if got := c.Correct(o); got.Latest != 10*time.Hour || got.Soonest != time.Hour {
		t.Errorf("corrected to %+v", got)
	}
	if got := c.Correct(Outlook{}); got != (Outlook{}) {
		t.Errorf("what is not known is corrected to %+v", got)
	}
	if right, of := c.Held(); right != 0 || of != calibrated {
		t.Errorf("%d of %d held", right, of)
	}
}
