// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// visible are, by vendor, the variables with which any driver shows a task its devices.
var visible = map[string]func(units []*Unit) map[string]string{
	"nvidia": visibleToCUDA, "amd": visibleToROCm, "intel": visibleToLevelZero, "huawei": visibleToAscend,
}

func visibleToCUDA(units []*Unit) map[string]string {
	visible := strings.Join(uuidsOf(units), ",")
	return map[string]string{gpu.EnvNVIDIAVisible: visible, gpu.EnvCUDAVisible: visible}
}

// visibleToROCm names GPUs by the UUIDs that ROCr knows. Partitions share their GPU's:
// they are named by their position, as are cards that have none.
func visibleToROCm(units []*Unit) map[string]string {
	shown, own := make([]string, len(units)), make([]string, len(units))
	for n, u := range units {
		shown[n], own[n] = u.UUID, strconv.Itoa(n)
		if u.Instance != nil || strings.Count(u.UUID, "-") > 1 {
			shown[n] = strconv.Itoa(u.position())
		}
	}
	return map[string]string{gpu.EnvROCRVisible: strings.Join(shown, ","), gpu.EnvHIPVisible: strings.Join(own, ",")}
}

// visibleToLevelZero names GPUs by their position. A virtual function is a device of its
// own there, which comes after the cards.
func visibleToLevelZero(units []*Unit) map[string]string {
	shown := make([]string, len(units))
	for n, u := range units {
		shown[n] = strconv.Itoa(u.position())
	}
	return map[string]string{gpu.EnvZEAffinity: strings.Join(shown, ",")}
}

// visibleToAscend names devices by their position, for the runtime; for Huawei's container
// runtime by the numbers of their nodes, which those of vNPUs are as well.
func visibleToAscend(units []*Unit) map[string]string {
	shown, nodes := make([]string, len(units)), make([]string, len(units))
	for n, u := range units {
		shown[n], nodes[n] = strconv.Itoa(u.position()), strconv.Itoa(u.GPU.Minor)
		if u.Instance != nil {
			nodes[n] = strconv.Itoa(u.Instance.GI)
		}
	}
	if units[0].Instance != nil {
		return map[string]string{gpu.EnvAscendVisible: strings.Join(nodes, ","), gpu.EnvAscendOptions: "VIRTUAL"}
	}
	return map[string]string{gpu.EnvAscendRTVisible: strings.Join(shown, ","), gpu.EnvAscendVisible: strings.Join(nodes, ",")}
}

// position is the device's place among all of the vendor's that programs see on the
// host.
func (u *Unit) position() int {
	if u.Instance != nil {
		return u.Instance.Position
	}
	return u.GPU.Position
}

func uuidsOf(units []*Unit) []string {
	all := make([]string, len(units))
	for n, u := range units {
		all[n] = u.UUID
	}
	return all
}
