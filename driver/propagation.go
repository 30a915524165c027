// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// checkPropagation refuses a mount whose source cannot hand on later mounts
// below it: the kernel would take it, and nothing would ever arrive. CSI node
// plugins live on it.
func checkPropagation(source *rooted.Handle, wanted rooted.Propagation) error {
	if wanted == rooted.Private {
		return nil
	}
	id, err := source.MountID()
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.ID != id, m.ID == id })
	if err != nil {
		return fmt.Errorf("look for the mount of the source: %w", err)
	}
	if len(mounts) == 0 {
		return fmt.Errorf("the source is on no mount that this process sees")
	}
	on := mounts[0]
	peers := strings.Fields(on.Optional)
	shared := slices.ContainsFunc(peers, func(field string) bool { return strings.HasPrefix(field, "shared:") })
	slave := slices.ContainsFunc(peers, func(field string) bool { return strings.HasPrefix(field, "master:") })
	if !shared && (wanted == rooted.Shared || !slave) {
		return fmt.Errorf("propagation needs a shared mount on the host, and the source lies on %q, which is not; the operator can change that with mount --make-rshared %s",
			on.Mountpoint, on.Mountpoint)
	}
	return nil
}
