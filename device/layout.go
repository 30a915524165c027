package device

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// layOut makes the MIG instances that the configuration declares, on GPUs that
// are empty. It compares sizes only: what is there already stays, with its UUID,
// so that a second run changes nothing and a reboot is repaired.
func (r *reconciler) layOut(units []*unit) {
	for _, u := range units {
		if u.instance != nil || !u.sharing.Mode.InParts() || u.gone {
			continue
		}
		wanted := sortedCopy(r.config.RuleFor(u.gpu, u.index).Profiles)
		if len(wanted) == 0 || laidOut(u.gpu, wanted) {
			continue
		}
		if u.busy || len(u.faults) > 0 || unclear(u.gpu) {
			continue // plan has cordoned it, or it must get well first
		}
		input := strings.Join(wanted, " ")
		_, err := r.background.do("layout "+u.uuid, input, retryInterval, func() error {
			r.log.Info("laying out partitions", "gpu", u.uuid, "profiles", input)
			return r.platform.partitioner.Layout(u.uuid, wanted)
		})
		if err != nil {
			r.addFault(u, gpu.Fault{Code: "mig-layout-failed", Message: "the " + string(u.sharing.Mode) + " layout could not be made: " + err.Error(),
				Action: "compare profiles in the plugin's configuration with what the GPU knows (nvidia-smi mig -lgip, amd-smi partition, npu-smi info -t template-info); what was there is offered"})
		}
	}
}

// layoutCordon says why the instances of a GPU take no new work while it waits
// to be laid out anew; empty when it does not.
func layoutCordon(r config.Rule, g hardware.GPU, inUse bool) string {
	wanted := sortedCopy(r.Profiles)
	if len(wanted) == 0 || !inUse || laidOut(g, wanted) {
		return ""
	}
	return fmt.Sprintf("waits for its tasks to end, to lay out %s", strings.Join(wanted, " "))
}

// laidOut reports whether a GPU's partitions are those that are wanted: each profile
// as often, or of a GPU with one mode for all, that mode. Without partitions a GPU of
// AMD's is in mode SPX.
func laidOut(g hardware.GPU, wanted []string) bool {
	have := profilesOf(g)
	if config.Vendors[g.Vendor].Mixed {
		return g.Partitioned && slices.Equal(wanted, have)
	}
	if !g.Partitioned {
		return strings.HasPrefix(wanted[0], "spx")
	}
	return !slices.ContainsFunc(have, func(profile string) bool { return profile != wanted[0] && !strings.HasPrefix(profile, wanted[0]+"-") })
}

// unclear reports whether not all is known of a GPU's MIG instances now.
func unclear(g hardware.GPU) bool {
	return g.PartitionProblem != nil || slices.ContainsFunc(g.Partitions, func(i hardware.Partition) bool { return len(i.Problems) > 0 })
}

func profilesOf(g hardware.GPU) []string {
	var all []string
	for _, i := range g.Partitions {
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
