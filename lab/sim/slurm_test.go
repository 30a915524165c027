// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const slurmHead = "JobID|Submit|ElapsedRaw|TimelimitRaw|ReqTRES|Account\n"

// Jobs of Slurm become tasks: one for each node, with its part of what was asked for, in the order of
// their submission.
func TestReadSlurm(t *testing.T) {
	s, err := ReadSlurm(strings.NewReader(slurmHead +
		"12|2026-03-01T10:00:30|3600|120|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|vision\n" +
		"11_4|2026-03-01T10:00:00|59|UNLIMITED|cpu=33,gres/gpu=16,mem=1000000M,node=2|nlp\n" +
		"13|2026-03-01T10:01:00|0|60|cpu=1,gres/gpu=1,mem=1G,node=1|nlp\n" +
		"14|2026-03-01T11:00:00|5|1|cpu=2,mem=2048M,node=1|\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range s.Tasks {
		got = append(got, fmt.Sprintf("%s at %g for %g of %g: %d mCPU %d MiB %d x %d %v %q", k.Name, k.ArriveSecond, k.RunSeconds, k.LimitSeconds, k.CPUMilli, k.MemoryMiB, k.GPUs, k.GPUMilli, k.Models, k.Queue))
	}
	want := `11_4/0 at 0 for 59 of 0: 17000 mCPU 500000 MiB 8 x 1000 [] "nlp"
11_4/1 at 0 for 59 of 0: 17000 mCPU 500000 MiB 8 x 1000 [] "nlp"
12 at 30 for 3600 of 7200: 8000 mCPU 65536 MiB 2 x 1000 [A100] "vision"
14 at 3600 for 5 of 60: 2000 mCPU 2048 MiB 0 x 0 [] ""`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if s.Jobs != 3 || s.Wide != 1 || s.NeverRan != 1 {
		t.Errorf("%d jobs, %d wide, %d never ran", s.Jobs, s.Wide, s.NeverRan)
	}
	if _, err := ReadArrivals(arrivalsOf(t, s.Tasks)); err != nil {
		t.Errorf("a replay does not read what was written: %v", err)
	}
}

func arrivalsOf(t *testing.T, tasks []Task) *strings.Reader {
	t.Helper()
	var text strings.Builder
	if err := WriteTasks(&text, tasks); err != nil {
		t.Fatal(err)
	}
	return strings.NewReader(text.String())
}

// What cannot be is refused, with its line.
func TestSlurmThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"JobID|Submit\n1|x\n":                                          `no column "ElapsedRaw"`,
		slurmHead + "1|yesterday|1|1|cpu=1|a\n":                        `line 2: Submit "yesterday" is no time such as`,
		slurmHead + "1|2026-03-01T10:00:00|-1|1|cpu=1|a\n":             `line 2: column "ElapsedRaw" is "-1"`,
		slurmHead + "1|2026-03-01T10:00:00|1|soon|cpu=1|a\n":           `column "TimelimitRaw" is "soon"`,
		slurmHead + "1|2026-03-01T10:00:00|1|1|cpu=many|a\n":           `ReqTRES "cpu=many": "cpu=many" is no amount`,
		slurmHead + "1|2026-03-01T10:00:00|1|1|cpu|a\n":                `"cpu" is no name=amount`,
		slurmHead + "1|2026-03-01T10:00:00|1|1|gres/gpu=65,node=1|a\n": "65 GPUs on a node, at most 64 are possible",
		slurmHead + "1|2026-03-01T10:00:00|0|1|cpu=1|a\n":              "none of 1 jobs ran",
	} {
		if _, err := ReadSlurm(strings.NewReader(text)); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
