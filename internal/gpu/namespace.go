// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// MPSNamespace names the namespace of a container under MPS v3: the path of its socket
// must be short.
func MPSNamespace(container string) string {
	sum := sha256.Sum256([]byte(container))
	return "c" + hex.EncodeToString(sum[:5])
}

// MPSNamespaces are those of the live tasks on a device.
func MPSNamespaces(uuid string, leases []Lease) (names []string) {
	for _, l := range leases {
		if l.Live() && slices.ContainsFunc(l.Holdings, func(h Holding) bool { return h.UUID == uuid && h.MPSGeneration > 0 }) {
			names = append(names, MPSNamespace(l.Container))
		}
	}
	return names
}
