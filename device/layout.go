package device

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// layOut makes the MIG instances that the configuration declares, on GPUs that
// are empty. It compares sizes only: what is there already stays, with its UUID,
// so that a second run changes nothing and a reboot is repaired.
func (r *reconciler) layOut(units []*unit) {
	for _, u := range units {
		if u.instance != nil || u.sharing.Mode != gpu.ModeMIG || u.gone {
			continue
		}
		wanted := sortedCopy(r.config.ruleFor(u.gpu, u.index).profiles)
		if len(wanted) == 0 || u.gpu.MIG && slices.Equal(wanted, profilesOf(u.gpu)) {
			continue
		}
		if u.busy || len(u.faults) > 0 || unclear(u.gpu) {
			continue // plan has cordoned it, or it must get well first
		}
		input := strings.Join(wanted, " ")
		_, err := r.background.do("layout "+u.uuid, input, retryInterval, func() error {
			r.log.Info("laying out MIG instances", "gpu", u.uuid, "profiles", input)
			return r.platform.partitioner.Layout(u.uuid, wanted)
		})
		if err != nil {
			r.addFault(u, gpu.Fault{Code: "mig-layout-failed", Message: "the MIG instances could not be laid out: " + err.Error(),
				Action: "compare profiles in the plugin's configuration with nvidia-smi mig -lgip; the instances that were there are offered"})
		}
	}
}

// layoutCordon says why the instances of a GPU take no new work while it waits
// to be laid out anew; empty when it does not.
func layoutCordon(r rule, g hardware.GPU, inUse bool) string {
	wanted := sortedCopy(r.profiles)
	if len(wanted) == 0 || !inUse || g.MIG && slices.Equal(wanted, profilesOf(g)) {
		return ""
	}
	return fmt.Sprintf("waits for its tasks to end, to lay out MIG instances %s", strings.Join(wanted, " "))
}

// unclear reports whether not all is known of a GPU's MIG instances now.
func unclear(g hardware.GPU) bool {
	return g.MIGProblem != nil || slices.ContainsFunc(g.Instances, func(i hardware.Instance) bool { return len(i.Problems) > 0 })
}

func profilesOf(g hardware.GPU) []string {
	var all []string
	for _, i := range g.Instances {
		all = append(all, i.Profile)
	}
	slices.Sort(all)
	return all
}

func sortedCopy(s []string) []string {
	c := slices.Clone(s)
	slices.Sort(c)
	return c
}
