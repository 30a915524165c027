package mps

import "testing"

func TestMemoryIsTheSameAsRounded(t *testing.T) {
	for _, tc := range []struct {
		answer string
		mib    int64
		want   bool
	}{
		{"79G", 80896, true}, {"79G", 81559, true}, {"79G", 81920, false}, {"79G", 79 << 10, true}, {"78G", 80896, false},
		{"1G", 1500, true}, {"1G", 1024, true}, {"1G", 1023, false}, {"2G", 1500, false},
		{"512M", 512, true}, {"511M", 512, false}, {"80896M", 80896, true}, {"79872M", 80896, false},
		{"", 0, true}, {"0M", 0, true}, {"", 512, false}, {"0M", 512, false}, {"1G", 0, false}, {"none", 512, false}, {"none", 0, false},
	} {
		if got := sameMemory(tc.answer, tc.mib); got != tc.want {
			t.Errorf("sameMemory(%q, %d) = %t", tc.answer, tc.mib, got)
		}
	}
}

func TestParseMemory(t *testing.T) {
	for _, tc := range []struct {
		answer string
		want   int64
	}{
		{"8192M", 8192}, {"8192MB", 8192}, {"8G", 8192}, {"8589934592", 8192}, {"0x200000000", 8192}, {"8388608K", 8192},
		{"Device 0 limit 8192M", 8192}, {"0: 8192 MB", 8192}, {"8 GiB", 8192}, {"limit=8192m", 8192},
	} {
		if got, _, err := parseMemory(tc.answer); err != nil || got != tc.want {
			t.Errorf("parseMemory(%q) = %d, %v; want %d", tc.answer, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "none", "M", "unlimited", "-8192M", "99999999999999999999"} {
		if got, _, err := parseMemory(bad); err == nil {
			t.Errorf("parseMemory(%q) = %d", bad, got)
		}
	}
}

func FuzzParseMemory(f *testing.F) {
	for _, seed := range []string{"8192M", "8G", "0x200000000", "limit 8192M", "", "-1", "M"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if mib, _, err := parseMemory(answer); err == nil && mib < 0 {
			t.Errorf("parseMemory(%q) = %d", answer, mib)
		}
	})
}
