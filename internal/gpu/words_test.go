// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

// What a type of group says of its devices' mode is what the plugin means by it.
func TestModeOfEveryType(t *testing.T) {
	type answer struct {
		mode        Mode
		part, known bool
	}
	want := map[string]answer{
		"gpu": {ModeWhole, false, true}, "npu": {ModeWhole, false, true},
		TypeSlice: {ModeSlice, false, true}, TypeShared: {ModeShared, false, true},
		"mig-slice-shared": {}, "mig-shared-slice": {}, "gpu-slice": {}, "slice-slice": {}, "tape": {}, "": {}, "-slice": {}, "mig-": {},
	}
	for _, part := range []string{"mig", "partition", "vf", "vnpu"} {
		want[part] = answer{ModeWhole, true, true}
		want[part+"-slice"] = answer{ModeSlice, true, true}
		want[part+"-shared"] = answer{ModeShared, true, true}
	}
	for name, want := range want {
		if mode, part, known := ModeOfType(name); (answer{mode, part, known}) != want {
			t.Errorf("%q is %q, %v, %v; want %+v", name, mode, part, known, want)
		}
	}
}

// Every word of a configuration is read as itself, and every other is refused with
// those that are valid.
func TestWordsOfConfigurations(t *testing.T) {
	for _, m := range modes {
		if got, err := ParseMode(string(m)); err != nil || got != m {
			t.Errorf("mode %q is read as %q, %v", m, got, err)
		}
		if m.InParts() != (m == ModeMIG || m == ModePartition) {
			t.Errorf("mode %q: in parts %v", m, m.InParts())
		}
	}
	grades := map[Sharing]Grade{SharingDmem: GradeEnforced, SharingMPS: GradeCooperative, SharingHAMi: GradeCooperative, SharingTimeslice: GradeNone, SharingSuspend: GradeNone, SharingNone: GradeNone}
	for _, s := range sharings {
		if got, err := ParseSharing(string(s)); err != nil || got != s {
			t.Errorf("sharing %q is read as %q, %v", s, got, err)
		}
		if got := s.Grade(); got != grades[s] {
			t.Errorf("sharing %q has the grade %q", s, got)
		}
	}
	if _, err := ParseMode("half"); err == nil || err.Error() != `mode "half" is not one of whole, slice, shared, mig, partition` {
		t.Errorf("an unknown mode: %v", err)
	}
	if got, err := ParseSharing(""); err == nil || got != "" || !strings.Contains(err.Error(), "mps, timeslice, hami, dmem, suspend, none") {
		t.Errorf("no sharing: %q, %v", got, err)
	}
}

// What is written is read again, up to the largest amount, and not beyond.
func TestMemoryUpToTheLargest(t *testing.T) {
	for _, mib := range []int64{1, 2, 1023, 1024, 1025, 81559, 1 << 20, math.MaxInt64, math.MaxInt64 / 1024 * 1024} {
		if got, err := ParseMemory(FormatMemory(mib)); err != nil || got != mib {
			t.Errorf("%d MiB is written %s and read as %d, %v", mib, FormatMemory(mib), got, err)
		}
	}
	most := int64(math.MaxInt64 / 1024)
	if got, err := ParseMemory(strconv.FormatInt(most, 10) + "G"); err != nil || got != most*1024 {
		t.Errorf("the most: %d, %v", got, err)
	}
	if got, err := ParseMemory(strconv.FormatInt(most+1, 10) + "G"); err == nil {
		t.Errorf("more than the most is %d", got)
	}
	if got := FormatMemory(0); got != "0M" {
		t.Errorf("nothing is %s", got)
	}
}

// Every request that can be said is written as it is read.
func TestEveryRequestIsWrittenAsItIsRead(t *testing.T) {
	amounts := []Request{{Kind: KindCount, Count: 1}, {Kind: KindCount, Count: maxCount}}
	for _, milli := range []int64{1, 10, 100, 120, 123, 500, 999} {
		amounts = append(amounts, Request{Kind: KindFraction, Milli: milli}, Request{Kind: KindMemory, MemoryMiB: 8192, Milli: milli})
	}
	for _, mib := range []int64{1, 512, 1024, 81559} {
		amounts = append(amounts, Request{Kind: KindMemory, MemoryMiB: mib})
	}
	for _, want := range amounts {
		for _, want.Vendor = range append(Vendors(), "") {
			for _, want.Model = range []string{"", "A100", "a", "Z9", "0z-_.A"} {
				if got, err := ParseRequest(want.String()); err != nil || got != want {
					t.Errorf("%+v is written %q and read as %+v, %v", want, want.String(), got, err)
				}
			}
		}
	}
}

// A mistake is named at its column, also in the second part of a request.
func TestEveryLetterThatCannotBeInAModelIsNamed(t *testing.T) {
	for c := range 128 {
		valid := strings.ContainsRune("-_.", rune(c)) || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if strings.ContainsRune("(),!|", rune(c)) {
			continue // the grammar gives it a meaning
		}
		for at, input := range map[int]string{0: "1(" + string(rune(c)) + "A)", 1: "1(A" + string(rune(c)) + ")", 8: "1(nvidia,A" + string(rune(c)) + ")"} {
			ok := valid && (at > 0 || !strings.ContainsRune("-_.", rune(c)))
			_, err := ParseRequest(input)
			if (err == nil) != ok {
				t.Errorf("%q: %v", input, err)
			}
			if problem, is := err.(*RequestError); is && problem.Column != 3+at {
				t.Errorf("%q: %v, want column %d", input, err, 3+at)
			}
		}
	}
}

func TestLeaseIDsOfLongNamesDiffer(t *testing.T) {
	at := strings.Repeat("a", 100)
	for _, tc := range []struct {
		task    string
		written bool
	}{{at, true}, {at + "a", false}, {strings.Repeat("b", 101), false}} {
		id := LeaseID("x", tc.task)
		if (id == "x."+tc.task) != tc.written || len(id) > 2+100 {
			t.Errorf("the ID of a task with %d letters is %s", len(tc.task), id)
		}
	}
	if LeaseID("x", at+"a") == LeaseID("x", at+"b") {
		t.Error("two tasks have one lease")
	}
}

func TestDaemonTakesCommandsWhereItSays(t *testing.T) {
	for want, s := range map[string]MPSState{"/control": {PipeDir: "/pipe", ControlDir: "/control"}, "/pipe": {PipeDir: "/pipe"}} {
		if got := s.CommandDir(); got != want {
			t.Errorf("%+v: %s", s, got)
		}
	}
	if got := (Fault{Message: "it broke", Action: "mend it"}).String(); got != "it broke; mend it" {
		t.Errorf("a fault reads %q", got)
	}
}
