// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"errors"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	valid := map[string]Request{
		"1":                                    {Kind: KindCount, Count: 1},
		"2(A100)":                              {Kind: KindCount, Count: 2, Model: "A100"},
		"1(nvidia,V100)":                       {Kind: KindCount, Count: 1, Vendor: "nvidia", Model: "V100"},
		"4(NVIDIA-A100-PCIE-40GB)":             {Kind: KindCount, Count: 4, Model: "NVIDIA-A100-PCIE-40GB"},
		"0.5":                                  {Kind: KindFraction, Milli: 500},
		"0.001":                                {Kind: KindFraction, Milli: 1},
		"0.999":                                {Kind: KindFraction, Milli: 999},
		"0.25(A100)":                           {Kind: KindFraction, Milli: 250, Model: "A100"},
		"8G":                                   {Kind: KindMemory, MemoryMiB: 8192},
		"8GiB":                                 {Kind: KindMemory, MemoryMiB: 8192},
		"512M":                                 {Kind: KindMemory, MemoryMiB: 512},
		"512MiB":                               {Kind: KindMemory, MemoryMiB: 512},
		"8G,0.5":                               {Kind: KindMemory, MemoryMiB: 8192, Milli: 500},
		"8G,500":                               {Kind: KindMemory, MemoryMiB: 8192, Milli: 500},
		"1(amd)":                               {Kind: KindCount, Count: 1, Vendor: "amd"},
		"0.5(intel)":                           {Kind: KindFraction, Milli: 500, Vendor: "intel"},
		"8G,0.5(nvidia,H100)":                  {Kind: KindMemory, MemoryMiB: 8192, Milli: 500, Vendor: "nvidia", Model: "H100"},
		"1(H100|A100)":                         {Kind: KindCount, Count: 1, Model: "H100|A100"},
		"0.5(amd,MI300X|MI210)":                {Kind: KindFraction, Milli: 500, Vendor: "amd", Model: "MI300X|MI210"},
		"1(!T4)":                               {Kind: KindCount, Count: 1, Not: "T4"},
		"1(nvidia,!T4,!V100)":                  {Kind: KindCount, Count: 1, Vendor: "nvidia", Not: "T4,V100"},
		"8G(H100|A100,!NVIDIA-A100-PCIE-40GB)": {Kind: KindMemory, MemoryMiB: 8192, Model: "H100|A100", Not: "NVIDIA-A100-PCIE-40GB"},
	}
	for input, want := range valid {
		got, err := ParseRequest(input)
		if err != nil || got != want {
			t.Errorf("ParseRequest(%q) = %+v, %v; want %+v", input, got, err, want)
		}
	}
}

func TestParseRequestErrors(t *testing.T) {
	tests := []struct {
		input  string
		column int
		says   string
	}{
		{"", 1, "an amount is missing"},
		{" 1", 1, "white space"},
		{"1 ", 2, "unknown unit"},
		{"0", 1, "count is zero"},
		{"02", 1, `write "2"`},
		{"99999", 1, "too large"},
		{"-1", 1, "not an amount"},
		{"one", 1, "not an amount"},
		{"1.0", 1, `write "1" for whole GPUs`},
		{"1.5", 1, "not below 1"},
		{"0.0", 1, "is zero"},
		{"0.1234", 3, "4 decimals"},
		{"0.", 3, "0 decimals"},
		{".5", 1, "zero before"},
		{"0.5x", 4, `unexpected "x"`},
		{"8GB", 2, "decimal"},
		{"8g", 2, "unknown unit"},
		{"0G", 1, "zero"},
		{"08G", 1, "leading zero"},
		{"9999999999999999999G", 1, "too large"},
		{"8G,", 4, "a fraction is missing"},
		{"8G, 0.5", 4, "not a fraction"},
		{"8G,1", 4, "not a fraction"},
		{"8G,1000", 4, "not a fraction"},
		{"8G,050", 4, "not a fraction"},
		{"8G,1.0", 4, `write "1"`},
		{"8G,0.5,1", 7, "unexpected"},
		{"1()", 3, "a model is missing"},
		{"1(A100", 7, "closing bracket"},
		{"1(A100)x", 8, "after the bracket"},
		{"1(nvidia", 9, "closing bracket"},
		{"1(acme,X1)", 3, "unknown vendor"},
		{"1(A 100)", 4, "in it"},
		{"1(nvidia,)", 10, "a model is missing"},
		{"1)", 2, "unexpected"},
		{"1(H100|)", 8, "a model is missing"},
		{"1(|H100)", 3, "a model is missing"},
		{"1(H100|h100)", 8, "stands twice"},
		{"1(H100|amd)", 8, "is a vendor"},
		{"1(!amd)", 4, "is a vendor"},
		{"1(nvidia,amd)", 10, "is a vendor"},
		{"1(!)", 4, "a model is missing"},
		{"1(!T4|V100)", 6, "does not stand there"},
		{"1(!T4,V100)", 7, "behind a comma"},
		{"1(!T4,!t4)", 8, "stands twice"},
		{"1(H100|!T4)", 8, "does not stand there"},
		{"1(H100,!h100)", 8, "asked for and excluded"},
		{"1(H100,)", 3, "unknown vendor"},
		{"1(H100,!T4", 11, "closing bracket"},
		{"1(" + strings.Repeat("a|", 16) + "b)", 5, "stands twice"},
		{"1(a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q)", 35, "more than 16"},
	}
	for _, test := range tests {
		_, err := ParseRequest(test.input)
		var problem *RequestError
		if !errors.As(err, &problem) {
			t.Errorf("ParseRequest(%q) = %v, want a RequestError", test.input, err)
			continue
		}
		if problem.Column != test.column || !strings.Contains(err.Error(), test.says) {
			t.Errorf("ParseRequest(%q) = %v, want column %d and %q", test.input, err, test.column, test.says)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{"1", "2(A100)", "0.5", "8G,0.5(nvidia,H100)", "512MiB", "1.0", "8GB", "((", "0.0001", "1(H100|A100,!T4)", "0.5(amd,!MI210,!MI250)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input string) {
		r, err := ParseRequest(input)
		if err != nil {
			var problem *RequestError
			if !errors.As(err, &problem) || problem.Column < 1 || problem.Column > len(input)+1 {
				t.Fatalf("ParseRequest(%q): %v is no RequestError with a column inside the input", input, err)
			}
			return
		}
		again, err := ParseRequest(r.String())
		if err != nil || again != r {
			t.Fatalf("ParseRequest(%q).String() = %q, which parses to %+v, %v; want %+v", input, r.String(), again, err, r)
		}
	})
}

func TestParseMemory(t *testing.T) {
	for input, want := range map[string]int64{"7GiB": 7168, "1G": 1024, "100M": 100} {
		if got, err := ParseMemory(input); err != nil || got != want {
			t.Errorf("ParseMemory(%q) = %d, %v; want %d", input, got, err, want)
		}
	}
	for _, input := range []string{"", "7", "7GB", "1.5G", "-1G", "0M", "G", "7 G"} {
		if got, err := ParseMemory(input); err == nil || !strings.Contains(err.Error(), "write a whole number") {
			t.Errorf("ParseMemory(%q) = %d, %v; want an error that says what is valid", input, got, err)
		}
	}
}

// A size on the host is written as GPU memory is, and no unit is guessed.
func TestParseBytes(t *testing.T) {
	for input, want := range map[string]int64{"64K": 64 << 10, "1KiB": 1 << 10, "256m": 256 << 20, "20G": 20 << 30, "2TiB": 2 << 40} {
		if got, err := ParseBytes(input); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", input, got, err, want)
		}
	}
	for input, says := range map[string]string{
		"": "no number", "20": "the unit is missing", "20GB": "decimal", "20kb": "decimal", "1.5G": "not whole", "-1G": "no number", "0": "unit is missing",
		"0G": "zero", "9999999999T": "too large", "20 G": "unknown unit", "268435456": "as bytes it is 256M", "1025": "as bytes it is 2K", "x": "no number",
	} {
		if got, err := ParseBytes(input); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "such as 512M") {
			t.Errorf("ParseBytes(%q) = %d, %v; want %q and what is valid", input, got, err, says)
		}
	}
	if got, err := ParseBytesOrZero("0"); err != nil || got != 0 {
		t.Errorf("zero is %d, %v", got, err)
	}
}
