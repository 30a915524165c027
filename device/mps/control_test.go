package mps

import "testing"

func TestParseMemory(t *testing.T) {
	for _, tc := range []struct {
		answer string
		want   int64
	}{
		{"8192M", 8192}, {"8192MB", 8192}, {"8G", 8192}, {"8589934592", 8192}, {"0x200000000", 8192}, {"8388608K", 8192},
		{"Device 0 limit 8192M", 8192}, {"0: 8192 MB", 8192}, {"8 GiB", 8192}, {"limit=8192m", 8192},
	} {
		if got, err := parseMemory(tc.answer); err != nil || got != tc.want {
			t.Errorf("parseMemory(%q) = %d, %v; want %d", tc.answer, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "none", "M", "unlimited", "-8192M", "99999999999999999999"} {
		if got, err := parseMemory(bad); err == nil {
			t.Errorf("parseMemory(%q) = %d", bad, got)
		}
	}
}

func FuzzParseMemory(f *testing.F) {
	for _, seed := range []string{"8192M", "8G", "0x200000000", "limit 8192M", "", "-1", "M"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if mib, err := parseMemory(answer); err == nil && mib < 0 {
			t.Errorf("parseMemory(%q) = %d", answer, mib)
		}
	})
}
