package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// checkPropagation refuses a mount whose source cannot hand on what is mounted
// below it: the kernel would take it, and nothing would ever arrive. CSI node
// plugins live on it.
func checkPropagation(mounts []spec.Mount) error {
	for _, m := range mounts {
		mode := spec.PropagationOf(m.Options)
		if m.Type != "bind" || mode == "" {
			continue
		}
		parents, err := mountinfo.GetMounts(mountinfo.ParentsFilter(m.Source))
		if err != nil {
			return fmt.Errorf("look for the mount of %q: %w", m.Source, err)
		}
		var on *mountinfo.Info
		for _, parent := range parents {
			if on == nil || len(parent.Mountpoint) >= len(on.Mountpoint) {
				on = parent // of two on one point the later one is seen
			}
		}
		if on == nil {
			return fmt.Errorf("mount at %q: %q is on no mount that this process sees", m.Target, m.Source)
		}
		peers := strings.Fields(on.Optional)
		shared := slices.ContainsFunc(peers, func(field string) bool { return strings.HasPrefix(field, "shared:") })
		slave := slices.ContainsFunc(peers, func(field string) bool { return strings.HasPrefix(field, "master:") })
		if !shared && (mode == "rshared" || !slave) {
			return fmt.Errorf("mount at %q: propagation needs a shared mount on the host, and %q lies on %q, which is not; the operator can change that with mount --make-rshared %s",
				m.Target, m.Source, on.Mountpoint, on.Mountpoint)
		}
	}
	return nil
}
