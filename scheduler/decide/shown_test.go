package decide

import "testing"

func TestScoresAreWrittenAsThePageWritesThem(t *testing.T) {
	for milli, want := range map[int64]string{0: "0", 7: "0.007", 2200: "2.2", -56794: "-56.794", 3000: "3"} {
		if got := scoreText(milli); got != want {
			t.Errorf("%d is %q, want %q", milli, got, want)
		}
	}
}
