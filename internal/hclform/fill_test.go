// SPDX-License-Identifier: MPL-2.0

package hclform

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"
)

// numbers has every form of number that a configuration of ours has.
type numbers struct {
	numbersInside
	Rules []struct {
		Index *int64 `codec:"index"`
		numbersInside
	} `codec:"rule"`
	Codes []uint64 `codec:"codes"`
	Share struct {
		Compute int64 `codec:"compute" as:"compute"`
	} `codec:"share"`
}

type numbersInside struct {
	Replicas *int64 `codec:"replicas"`
	Burst    *int64 `codec:"burst" as:"compute"`
}

// Half of a GPU is written in either way, in every place and encoding.
func TestNumbersAreReadAlike(t *testing.T) {
	for _, half := range []any{"0.5", "500", 500, 0.5} {
		var n numbers
		must.NoError(t, Fill(map[string]any{
			"burst": half, "replicas": "4", "codes": []any{"48", 63}, "share": map[string]any{"compute": half},
			"rule": []any{map[string]any{"burst": half, "index": 0}, map[string]any{}},
		}, &n))
		must.Eq(t, []int64{500, 500, 500, 4, 0}, []int64{*n.Burst, *n.Rules[0].Burst, n.Share.Compute, *n.Replicas, *n.Rules[0].Index})
		must.Eq(t, []uint64{48, 63}, n.Codes)
		must.Nil(t, n.Rules[1].Index)
	}
}

// Every number that cannot be used is named with its key, its value and valid ones, and
// the rest is read.
func TestNumbersThatCannotBeUsed(t *testing.T) {
	var n numbers
	err := Fill(map[string]any{
		"replicas": "2.5", "burst": "50%", "codes": []any{"1", "-1"}, "share": map[string]any{"compute": "0.5555"},
		"rule": []any{map[string]any{"burst": "0.5", "index": "first"}, map[string]any{"replicas": "99999999999999999999"}, map[string]any{"replicas": true}},
	}, &n)
	var mistakes Mistakes
	must.True(t, errors.As(err, &mistakes))
	must.SliceLen(t, 7, mistakes, must.Sprint(err))
	for _, says := range []string{
		`replicas: "2.5" is not valid (a whole number)`, `burst: "50%" is not valid (a fraction of a GPU`, "; write 0.5",
		`rule[0].index: "first" is not valid (a whole number)`, "rule[1].replicas: 99999999999999999999 is not valid (it is too large)", `rule[2].replicas: "true"`,
		"codes[1]: -1 is not valid (a whole number from 0)", `share.compute: "0.5555" is not valid`,
	} {
		must.StrContains(t, err.Error(), says)
	}
	must.Eq(t, 500, *n.Rules[0].Burst)
	must.Nil(t, n.Replicas)
}

// Values of another kind than the form's are named, and the rest is read.
func TestValuesOfAnotherKind(t *testing.T) {
	var form struct {
		Text  string              `codec:"text"`
		On    bool                `codec:"on"`
		List  []string            `codec:"list"`
		Maps  []map[string]string `codec:"maps"`
		Block struct {
			Text string `codec:"text"`
		} `codec:"block"`
		Kept string `codec:"kept"`
	}
	err := Fill(map[string]any{"text": 7, "on": "yes", "list": "a", "maps": []any{map[string]any{"a": 1}, 2}, "block": []any{}, "kept": "k"}, &form)
	must.EqError(t, err, `text: "7" is not valid (a text)
on: "yes" is not valid (true, false)
list: "a" is not valid (a list)
maps[0].a: "1" is not valid (a text)
maps[1]: "2" is not valid (a map)
block: "[]" is not valid (a block)`)
	must.Eq(t, "k", form.Kept)
}
