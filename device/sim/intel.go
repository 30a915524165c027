// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// intel shows Intel's cards: the PCI devices with what their driver adds, virtual
// functions, and the handles of programs.
func (k *Kernel) intel(c Control, files fileSet) {
	t := k.topology
	if !slices.ContainsFunc(t.Cards, func(c Card) bool { return c.Vendor == "intel" }) || c.gone("intel") {
		return
	}
	files.text("6.12.0-sim", "proc/sys/kernel/osrelease")
	files.text(t.Name, "etc/machine-id")
	for i, card := range t.Cards {
		condition := c.GPUs[t.CardUUID(i)]
		if card.Vendor != "intel" {
			continue
		}
		files.text("Y", "sys/module", card.Driver, "parameters/modeset") // it stays when the card goes
		if condition.Missing {
			continue
		}
		k.intelPCI(i, t.CardPCI(i), 0, condition, files)
		functions := t.functions(i)
		if strings.Contains(card.Name, "Flex") {
			files.number(31, "sys/bus/pci/devices", t.CardPCI(i), "sriov_totalvfs")
		}
		if functions > 0 {
			files.number(int64(functions), "sys/bus/pci/devices", t.CardPCI(i), "sriov_numvfs")
		}
		for f := range functions {
			address := strings.TrimSuffix(t.CardPCI(i), "0") + strconv.Itoa(f+1)
			files["sys/bus/pci/devices/"+t.CardPCI(i)+fmt.Sprintf("/virtfn%d", f)] = "->../" + address
			files["sys/bus/pci/devices/"+address+"/physfn"] = "->../" + t.CardPCI(i)
			files.number(card.MemoryMiB<<20/int64(functions), "sys/bus/pci/devices", t.CardPCI(i), fmt.Sprintf("drm/card%d/iov/vf%d/gt0/lmem_quota", k.firstNode(i), f+1))
			k.intelPCI(i, address, f+1, condition, files)
		}
	}
}

// functions is how many virtual functions the i-th card has.
func (t *Topology) functions(i int) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(t.Cards[i].Mode, "vf-"))
	return n
}

// intelPCI shows a card, or one of its virtual functions.
func (k *Kernel) intelPCI(i int, address string, function int, c Condition, files fileSet) {
	card := k.topology.Cards[i]
	dir := "sys/bus/pci/devices/" + address
	files.text("0x8086", dir, "vendor")
	files.text(fmt.Sprintf("0x%04x", card.DeviceID), dir, "device")
	files.text("0x030000", dir, "class")
	files.number(int64(card.NUMA), dir, "numa_node")
	if c.Lost {
		return // no driver serves it any more
	}
	files[dir+"/driver"] = "->../../../../bus/pci/drivers/" + card.Driver
	node := k.firstNode(i) + function
	drm := fmt.Sprintf("%s/drm/card%d", dir, node)
	files[drm+"/dev"] = fmt.Sprintf("226:%d\n", node)
	files[fmt.Sprintf("%s/drm/renderD%d/dev", dir, firstRender+node)] = fmt.Sprintf("226:%d\n", firstRender+node)
	for n, p := range c.Processes {
		if (p.Instance == "") == (function == 0) && (function == 0 || p.Instance == k.topology.PartitionUUID(i, function)) {
			k.handle(p, n, address, node, card.Driver, files)
		}
	}
	if function > 0 {
		return
	}
	files[dir+"/aer_dev_fatal"] = fmt.Sprintf("Undefined 0\nTOTAL_ERR_FATAL %d\n", c.LinkErrors)
	if card.Driver == "xe" {
		files.number(int64(card.CoreMHz), dir, "tile0/gt0/freq0/max_freq")
		files.number(int64(card.CoreMHz)/4, dir, "tile0/gt0/freq0/act_freq")
		if c.RemapFailed {
			files.text("Boot", dir, "survivability_mode")
		}
	} else {
		files.number(int64(card.CoreMHz), drm, "gt/gt0/rps_max_freq_mhz")
		files.number(int64(card.CoreMHz)/4, drm, "gt/gt0/rps_act_freq_mhz")
		files.number(card.MemoryMiB<<20, drm, "lmem_total_bytes")
		files.number(int64(c.ECCUncorrected), drm, "gt/gt0/error_counter/fatal_guc")
	}
	hwmon := dir + "/hwmon/hwmon5"
	files.text("pkg", hwmon, "temp2_label")
	files.number(1000*int64(cmp.Or(c.TemperatureC, 45)), hwmon, "temp2_input")
	files.number(1e6*card.Watts, hwmon, "power1_max")
	files.number(int64(c.EnergyJoules)*1e6, hwmon, "energy1_input")
}

// xeClock is by how much xe's clock counts in a second.
const xeClock = 19_200_000

// handle shows a program's handle of a device.
func (k *Kernel) handle(p Process, n int, address string, node int, driver string, files fileSet) {
	fd := fmt.Sprint(10 + n)
	proc := fmt.Sprintf("proc/%d", p.PID)
	files[proc+"/fd/"+fd] = fmt.Sprintf("->/dev/dri/renderD%d", firstRender+node)
	region := map[string]string{"i915": "local0", "xe": "vram0"}[driver]
	files[proc+"/fdinfo/"+fd] = fmt.Sprintf("pos:\t0\nflags:\t02\ndrm-driver:\t%s\ndrm-client-id:\t%d\ndrm-pdev:\t%s\ndrm-total-%s:\t%d KiB\ndrm-resident-%s:\t%d KiB\n",
		driver, n+1, address, region, p.MemoryMiB<<10, region, p.MemoryMiB<<10)
	if driver == "xe" {
		files[proc+"/fdinfo/"+fd] += fmt.Sprintf("drm-cycles-rcs:\t%d\ndrm-total-cycles-rcs:\t%d\n", uint64(p.BusySeconds)*xeClock, uint64(p.ClockSeconds)*xeClock)
		return
	}
	files[proc+"/fdinfo/"+fd] += fmt.Sprintf("drm-engine-render:\t%d ns\n", uint64(p.BusySeconds)*1e9)
}
