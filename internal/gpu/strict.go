// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// checkKeys refuses JSON that readers take in different ways: Go takes the last of two equal
// keys, and a key in any case. Ours are of small letters and underscores.
func checkKeys(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	var open []map[string]bool // nil for an array
	key := false               // whether the next token of an object is one
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil // decoding it says what is wrong
		}
		inObject := len(open) > 0 && open[len(open)-1] != nil
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{':
				open = append(open, map[string]bool{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
			key = len(open) > 0 && open[len(open)-1] != nil
			continue
		case string:
			if !inObject || !key {
				break
			}
			seen := open[len(open)-1]
			if strings.Trim(token, "abcdefghijklmnopqrstuvwxyz_") != "" {
				return fmt.Errorf("unknown field %.80q", token)
			}
			if seen[token] {
				return fmt.Errorf("duplicate field %.80q", token)
			}
			seen[token] = true
		}
		key = inObject && !key
	}
}
