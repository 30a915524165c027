package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// versioned is the content of a file in the data directory, which outlives
// reboots and upgrades.
type versioned interface{ version() int }

// readData reads a file of the data directory, of any version up to the newest.
// Of one that is not there the text is nil.
func readData[T versioned](path string, newest int) (content T, text []byte, err error) {
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
	if v := content.version(); v < 1 || v > newest {
		return content, nil, fmt.Errorf("data file %s has version %d, this release reads 1 to %d", path, v, newest)
	}
	return content, text, nil
}

// writeData replaces a file of the data directory, unless its text is as it was,
// and returns the text.
func writeData[T versioned](path string, content T, before []byte) ([]byte, error) {
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
