// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ParseSeccomp reads a seccomp profile in the form of the OCI runtime
// specification. A profile that names a socket is refused: the runtime would
// connect to it as root of the host.
func ParseSeccomp(text []byte) (*specs.LinuxSeccomp, error) {
	var profile specs.LinuxSeccomp
	if err := json.Unmarshal(text, &profile); err != nil {
		return nil, fmt.Errorf("it is not a profile of the OCI runtime specification: %w", err)
	}
	if profile.ListenerPath != "" || profile.ListenerMetadata != "" {
		return nil, fmt.Errorf("listenerPath is not allowed: the runtime would connect to it from outside the container")
	}
	return &profile, nil
}
