// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Nomad takes a part of a device's name that is empty for any: a block called "nvidia/" gets every
// device of that vendor, whatever it is and however many of them are one GPU. What could be a GPU
// under such a name is refused, and not taken for another device.
func TestNamesWithoutAPart(t *testing.T) {
	for name, c := range map[string]struct {
		refused bool
		asks    int
	}{
		"nvidia/gpu": {asks: 1}, "gpu": {asks: 1}, "nvidia/gpu/": {asks: 1}, "nvidia/slice/A100/0": {asks: 1}, "acme/card": {asks: 1}, "intel/fpga": {}, "fpga": {}, "fpga/": {refused: true},
		"nvidia/": {refused: true}, "/gpu": {refused: true}, "/gpu/A100": {refused: true}, "/": {refused: true}, "//": {refused: true}, "//A100": {refused: true},
		"nvidia//A100": {refused: true}, "acme/": {refused: true}, "acme//x": {refused: true}, "/card": {refused: true}, "/slice": {refused: true}, "/fpga": {refused: true},
	} {
		for where, block := range map[string]string{
			"a block":        fmt.Sprintf(`{"Name":%q,"Count":8}`, name),
			"an alternative": fmt.Sprintf(`{"Name":"x","FirstAvailable":[{"Name":%q,"Count":8}]}`, name),
		} {
			job := `{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Resources":{"Devices":[` + block + `]}}]}]}}`
			j, err := Read([]byte(job), Query{Devices: []string{"acme/card"}})
			var refusal *Refusal
			if errors.As(err, &refusal) != c.refused || c.refused && (refusal.Status != badRequest || !strings.Contains(refusal.Text, fmt.Sprintf("%q", name))) {
				t.Errorf("%s %q: %v", where, name, err)
			}
			if err == nil && len(j.Asks) != c.asks {
				t.Errorf("%s %q: %d asks, want %d", where, name, len(j.Asks), c.asks)
			}
		}
	}
}
