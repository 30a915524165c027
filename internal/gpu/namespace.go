// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// The first letter of a namespace says what it was made for: a container, or the control
// group of another driver's task.
const containerNamespace, tenantNamespace = "c", "r"

// MPSNamespace names the namespace of a container under MPS v3.
func MPSNamespace(container string) string { return namespaceName(containerNamespace, container) }

// MPSTenantNamespace names the namespace of another driver's task, by its control group.
func MPSTenantNamespace(group string) string { return namespaceName(tenantNamespace, group) }

// IsMPSTenantNamespace reports whether a namespace is of another driver's task.
func IsMPSTenantNamespace(name string) bool { return strings.HasPrefix(name, tenantNamespace) }

// namespaceName is short, since the path of a namespace's socket must be.
func namespaceName(kind, of string) string {
	sum := sha256.Sum256([]byte(of))
	return kind + hex.EncodeToString(sum[:5])
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
