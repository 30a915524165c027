// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Both ways in which the table was seen.
const (
	table = `GPU            Partition    free     used     free   used   clients
                            chunks   chunks   SM     SM
GPU-11111111                4        12       36     96
GPU-11111111   H////w==              8               64     Yes
GPU-11111111   AH8=                  4               32     No
`
	dashes = `GPU           Partition   free   used   free  used  clients
                          chunk  chunk  SM    SM
GPU-11111111  -           4      12     36    96    -
GPU-11111111  H////w==    -      8      -     64    Yes
GPU-11111111  AH8=        -      4      -     32    No
`
)

func TestPartitionsAreRead(t *testing.T) {
	for _, text := range []string{table, dashes} {
		p, err := parsePartitions(text)
		want := []Partition{{"H////w==", 8, true}, {"AH8=", 4, false}}
		if err != nil || p.Chunks != 16 || p.FreeChunks != 4 || p.Multiprocessors != 132 || !slices.Equal(p.All, want) {
			t.Errorf("%+v, %v", p, err)
		}
	}
	for _, tc := range []struct{ text, says string }{
		{"", "0 devices"},
		{"Static partitioning is not enabled", "0 devices"},
		{strings.Replace(table, "\nGPU-11111111   H", "\nGPU-22222222 1 2 3 4\nGPU-11111111   H", 1), "2 devices"},
		{"GPU-1 4 12 36", "neither"},
		{"GPU-1 4 12 36 96 1", "neither"},
		{"GPU-1 x 12 36 96", `"x"`},
		{"GPU-1 4 12 36 96\nGPU-1 AH8= x 32 No", `"x"`},
	} {
		if p, err := parsePartitions(tc.text); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: %+v, %v", tc.text, p, err)
		}
	}
}

func FuzzPartitions(f *testing.F) {
	f.Add(table)
	f.Add(dashes)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePartitions(text)
		if err == nil && slices.ContainsFunc(p.All, func(one Partition) bool { return one.ID == "" }) {
			t.Errorf("%+v", p)
		}
	})
}

func TestAddPartition(t *testing.T) {
	for _, tc := range []struct {
		answer, id string
		err        error
	}{
		{"Partition GPU-1-2/H////w== created", "H////w==", nil},
		{"GPU-1-2/AH8=", "AH8=", nil},
		{"Partition GPU-1/AH8= created", "AH8=", nil}, // a name that is cut short
		{"Failed to fulfill the requested SM partition of 9 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "", ErrNoRoom},
		{"Unknown command sm_partition", "", ErrUnknown},
		{"Insufficient privileges", "", ErrRefused},
	} {
		id, err := program(t, "echo '"+tc.answer+"'").AddPartition(t.Context(), "GPU-1-2", 9)
		if id != tc.id || !errors.Is(err, tc.err) {
			t.Errorf("%q: %q, %v", tc.answer, id, err)
		}
	}
	for _, answer := range []string{"", "Partition created", "Partition GPU-9/AH8= created", "Partition GPU-1-2/ created", "cannot open /dev/nvidia0"} {
		if id, err := program(t, "echo '"+answer+"'").AddPartition(t.Context(), "GPU-1-2", 9); err == nil {
			t.Errorf("%q is partition %q", answer, id)
		}
	}
}

func TestRemovePartition(t *testing.T) {
	for _, tc := range []struct{ id, list, says string }{
		{"gone", table, ""},
		{"AH8=", table, "still there: in use"},
		{"gone", "nonsense", "0 devices"},
	} {
		c := program(t, `case "$q" in lspart) echo "`+tc.list+`";; *) echo "in use";; esac`)
		err := c.RemovePartition(t.Context(), "GPU-1-2", tc.id)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if err := program(t, `echo "Insufficient privileges"`).RemovePartition(t.Context(), "GPU-1-2", "x"); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}
