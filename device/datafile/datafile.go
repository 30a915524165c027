// SPDX-License-Identifier: MPL-2.0

// Package datafile keeps what must outlive a reboot in files of JSON, each with a version:
// a release reads those of the releases before it, and refuses those of later ones.
package datafile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Read reads a file of the data directory, of any version up to the newest.
// Of one that is not there the text is nil.
func Read[T any](path string, newest int) (content T, text []byte, err error) {
	text, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return content, nil, nil
	}
	if err != nil {
		return content, nil, fmt.Errorf("read data file: %w", err)
	}
	if err := json.Unmarshal(text, &content); err != nil {
		return content, nil, fmt.Errorf("read data file %s: %w", path, err)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return content, nil, fmt.Errorf("read data file %s: %w", path, err)
	}
	if head.Version < 1 || head.Version > newest {
		return content, nil, fmt.Errorf("data file %s has version %d, this release reads 1 to %d", path, head.Version, newest)
	}
	return content, text, nil
}

// Write replaces a file of the data directory, unless its text is as it was,
// and returns the text.
func Write[T any](path string, content T, before []byte) ([]byte, error) {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return before, fmt.Errorf("encode data file %s: %w", path, err)
	}
	if string(text) == string(before) {
		return before, nil
	}
	if err := statedir.WriteFile(path, text, 0o600); err != nil {
		return before, err
	}
	return text, nil
}
