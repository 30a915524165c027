package nvidia

import (
	"os"
	"strings"
)

// Replaced reports whether the driver's library was replaced on disk since this
// process loaded it: containers get the new one, and only a new process sees it.
func (b *Backend) Replaced() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err == nil && replaced(string(maps))
}

func replaced(maps string) bool {
	for line := range strings.Lines(maps) {
		if strings.Contains(line, "libnvidia-ml.so") && strings.HasSuffix(strings.TrimSpace(line), "(deleted)") {
			return true
		}
	}
	return false
}
