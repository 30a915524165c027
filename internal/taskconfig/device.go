// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"path"
	"strings"
)

// Device is one host device node for the container.
type Device struct {
	HostPath, ContainerPath, Permissions string
}

// ParseDevice reads HOST[:CONTAINER[:PERMISSIONS]], such as "/dev/fuse" or
// "/dev/loop0:/dev/disk:r".
func ParseDevice(text string) (Device, error) {
	parts := strings.Split(text, ":")
	d := Device{HostPath: parts[0], ContainerPath: parts[0], Permissions: "rwm"}
	if len(parts) > 1 {
		d.ContainerPath = parts[1]
	}
	if len(parts) > 2 {
		d.Permissions = parts[2]
	}
	valid := len(parts) <= 3 && d.Permissions != "" && strings.Trim(d.Permissions, "rwm") == ""
	for _, p := range []string{d.HostPath, d.ContainerPath} {
		valid = valid && strings.HasPrefix(p, "/dev/") && path.Clean(p) == p
	}
	if !valid {
		return Device{}, fmt.Errorf("%q is not HOST[:CONTAINER[:PERMISSIONS]] with clean paths below /dev and permissions of r, w and m", text)
	}
	return d, nil
}
