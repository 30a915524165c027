// SPDX-License-Identifier: MPL-2.0

package splitmix

import (
	"slices"
	"testing"
)

// The first numbers of the published generator from seed 1234567.
func TestNextIsSplitMix64(t *testing.T) {
	r := Source(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := r.Next(); got != want {
			t.Errorf("number %d is %d, want %d", i, got, want)
		}
	}
}

func TestMixDependsOnOrder(t *testing.T) {
	var ab, ba Source
	ab.Mix(1)
	ab.Mix(2)
	ba.Mix(2)
	ba.Mix(1)
	if ab == ba || ab == 0 {
		t.Errorf("hashes %d and %d", ab, ba)
	}
}

func TestFloatIsInRange(t *testing.T) {
	r, sum := Source(2), 0.0
	for range 10000 {
		f := r.Float()
		if f < 0 || f >= 1 {
			t.Fatalf("%v is not in [0, 1)", f)
		}
		sum += f
	}
	if sum < 4900 || sum > 5100 {
		t.Errorf("10,000 numbers sum up to %v", sum)
	}
}

func TestShuffledHoldsEveryNumber(t *testing.T) {
	r := Source(1)
	first := 0
	for range 1000 {
		list := r.Shuffled(5)
		first += list[0]
		slices.Sort(list)
		if !slices.Equal(list, []int{0, 1, 2, 3, 4}) {
			t.Fatalf("%v", list)
		}
	}
	if first < 1800 || first > 2200 {
		t.Errorf("the first of five is %v on average, want 2", float64(first)/1000)
	}
}
