package device

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// visible are, by vendor, the variables with which any driver shows a task its devices.
var visible = map[string]func(units []*unit) map[string]string{
	"nvidia": visibleToCUDA, "amd": visibleToROCm, "intel": visibleToLevelZero, "huawei": visibleToAscend,
}

// unable says why a device cannot be offered as it is configured; empty if it can.
func (u *unit) unable() string {
	can := gpu.Sharings(u.gpu.Vendor)
	switch {
	case u.sharing.Mode == gpu.ModeSlice && !gpu.InSlices(u.gpu.Vendor):
		return fmt.Sprintf("mode \"slice\": nothing keeps tasks apart on one of %s's devices but vNPUs; write mode = \"partition\" with profiles", u.gpu.Vendor)
	case u.sharing.Mode == gpu.ModeSlice && u.memoryMiB == 0:
		return "mode \"slice\": the driver does not tell how much memory the device has"
	case (u.sharing.Mode == gpu.ModeSlice || u.sharing.Mode == gpu.ModeShared) && !slices.Contains(can, u.sharing.Mechanism):
		names := make([]string, len(can))
		for n, s := range can {
			names[n] = string(s)
		}
		return fmt.Sprintf("sharing %q: %s devices know %s", u.sharing.Mechanism, u.gpu.Vendor, strings.Join(names, ", "))
	case u.static && u.instance != nil:
		return "mps { static_partitioning }: NVIDIA does not say that it divides MIG instances; make smaller ones"
	case u.static && major(u.gpu.ComputeCapability) < 8:
		return fmt.Sprintf("mps { static_partitioning }: it takes a GPU of compute capability 8.0 (Ampere) or later, and this one has %q", u.gpu.ComputeCapability)
	case u.sharing.Mechanism == gpu.SharingSuspend && (u.sharing.Mode != gpu.ModeShared || u.instance != nil):
		return "sharing \"suspend\": it is for GPUs in mode \"shared\", not for slices and MIG instances"
	case u.sharing.Mechanism == gpu.SharingDmem && u.instance != nil:
		return "sharing \"dmem\": the kernel limits the memory of GPUs, not of their partitions"
	case u.sharing.Mechanism == gpu.SharingDmem && u.gpu.Dmem == "":
		return "sharing \"dmem\": the kernel cannot limit this device's memory; that takes Linux 6.14 with control groups version 2, and a driver that takes part"
	}
	return ""
}

// checkVendor makes a fault of what the vendor's devices cannot.
func (r *reconciler) checkVendor(u *unit) {
	if why := u.unable(); why != "" {
		r.addFault(u, gpu.Fault{Code: "sharing-impossible", Message: why, Action: "change the plugin's configuration for this device"})
	}
}

func visibleToCUDA(units []*unit) map[string]string {
	visible := strings.Join(uuidsOf(units), ",")
	return map[string]string{gpu.EnvNVIDIAVisible: visible, gpu.EnvCUDAVisible: visible}
}

// visibleToROCm names GPUs by the UUIDs that ROCr knows. Partitions share their GPU's:
// they are named by their position, as are cards that have none.
func visibleToROCm(units []*unit) map[string]string {
	shown, own := make([]string, len(units)), make([]string, len(units))
	for n, u := range units {
		shown[n], own[n] = u.uuid, strconv.Itoa(n)
		if u.instance != nil || strings.Count(u.uuid, "-") > 1 {
			shown[n] = strconv.Itoa(u.position())
		}
	}
	return map[string]string{gpu.EnvROCRVisible: strings.Join(shown, ","), gpu.EnvHIPVisible: strings.Join(own, ",")}
}

// visibleToLevelZero names GPUs by their position. A virtual function is a device of its
// own there, which comes after the cards.
func visibleToLevelZero(units []*unit) map[string]string {
	shown := make([]string, len(units))
	for n, u := range units {
		shown[n] = strconv.Itoa(u.position())
	}
	return map[string]string{gpu.EnvZEAffinity: strings.Join(shown, ",")}
}

// visibleToAscend names devices by their position, for the runtime; for Huawei's container
// runtime by the numbers of their nodes, which those of vNPUs are as well.
func visibleToAscend(units []*unit) map[string]string {
	shown, nodes := make([]string, len(units)), make([]string, len(units))
	for n, u := range units {
		shown[n], nodes[n] = strconv.Itoa(u.position()), strconv.Itoa(u.gpu.Minor)
		if u.instance != nil {
			nodes[n] = strconv.Itoa(u.instance.GI)
		}
	}
	if units[0].instance != nil {
		return map[string]string{gpu.EnvAscendVisible: strings.Join(nodes, ","), gpu.EnvAscendOptions: "VIRTUAL"}
	}
	return map[string]string{gpu.EnvAscendRTVisible: strings.Join(shown, ","), gpu.EnvAscendVisible: strings.Join(nodes, ",")}
}

// position is the device's place among all of the vendor's that programs see on the
// host.
func (u *unit) position() int {
	if u.instance != nil {
		return u.instance.Position
	}
	return u.gpu.Position
}

func uuidsOf(units []*unit) []string {
	all := make([]string, len(units))
	for n, u := range units {
		all[n] = u.uuid
	}
	return all
}
