// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// The numbers of the device nodes of Ascend's driver, which get theirs at run time, from
// the range for local use.
const (
	majorDavinci  = 242
	majorVDavinci = 243
)

// firstVNPU is the number of the first vNPU of the first device; each has 16.
const firstVNPU = 100

// template is what a vNPU of a template has.
type template struct{ cores, memoryMiB int64 }

// templates are those of Ascend's processors, by the name of the chip.
var templates = map[string]map[string]template{
	"910B3": {"vir10_3c_32g": {10, 30720}, "vir05_1c_16g": {5, 15360}},
	"310P3": {"vir04": {4, 12288}, "vir02": {2, 6144}, "vir01": {1, 3072}},
}

// ascends are the positions of Ascend's devices among the cards.
func (t *Topology) ascends() []int {
	var found []int
	for i, c := range t.Cards {
		if c.Vendor == "huawei" {
			found = append(found, i)
		}
	}
	return found
}

// physical is the number of the i-th card among Ascend's devices, as in /dev/davinci<N>.
func (t *Topology) physical(i int) int { return slices.Index(t.ascends(), i) }

// dieID is the ID burned into the i-th card.
func (t *Topology) dieID(i int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "nomad-gpu simulated die %s/%d", t.Name, i))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:8], sum[8:12], sum[12:16], sum[16:20])
}

// vnpus are the templates of a mode, "vir10_3c_32g,vir05_1c_16g".
func (c Card) vnpus() []string {
	if c.Mode == "" {
		return nil
	}
	return strings.Split(c.Mode, ",")
}

// checkVNPUs says why a device cannot have vNPUs of some templates.
func (c CardProduct) checkVNPUs(names []string) error {
	known := templates[strings.TrimPrefix(c.Name, "Huawei Ascend ")]
	var cores, memory int64
	for _, name := range names {
		t, ok := known[name]
		if !ok {
			return fmt.Errorf("the device has no vNPU template %q; it has %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		cores, memory = cores+t.cores, memory+t.memoryMiB
	}
	if cores > c.AICores || memory > c.MemoryMiB {
		return fmt.Errorf("the vNPUs have %d AI cores and %d MiB together, the device %d and %d", cores, memory, c.AICores, c.MemoryMiB)
	}
	return nil
}

// library is the folder with the simulated libdcmi.so and its input.
func (k *Kernel) library() string { return filepath.Join(k.dir, "dcmi") }

// installDCMI puts the library into the machine, and the vNPUs that a fresh boot has.
func (k *Kernel) installDCMI(o Options) error {
	all := k.topology.ascends()
	if len(all) == 0 {
		return nil
	}
	if o.DCMI == "" {
		return errors.New("simulation.dcmi: the topology has Ascend devices; name the simulated libdcmi.so, which make build puts into bin/e2e")
	}
	code, err := os.ReadFile(o.DCMI)
	if err != nil {
		return fmt.Errorf("simulation.dcmi: %w", err)
	}
	if err := os.MkdirAll(k.library(), 0o755); err != nil {
		return fmt.Errorf("make folder of the simulated libdcmi.so: %w", err)
	}
	library := filepath.Join(k.library(), "libdcmi.so")
	if old, err := os.ReadFile(library); err != nil || !bytes.Equal(old, code) {
		if err := statedir.WriteFile(library, code, 0o755); err != nil {
			return err
		}
	}
	booted := filepath.Join(k.library(), "boot")
	if old, err := os.ReadFile(booted); err == nil && string(old) == o.BootID {
		return nil
	}
	if err := k.bootVNPUs(all); err != nil {
		return err
	}
	return statedir.WriteFile(booted, []byte(o.BootID), 0o644)
}

// bootVNPUs makes the vNPUs of the topology, and no others.
func (k *Kernel) bootVNPUs(all []int) error {
	stale, err := filepath.Glob(filepath.Join(k.dir, "nodes", "vdavinci*"))
	if err != nil {
		return err
	}
	for _, path := range stale {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("end a simulated vNPU: %w", err)
		}
	}
	text := ""
	var nodes []node
	for n, i := range all {
		card := k.topology.Cards[i]
		for at, name := range card.vnpus() {
			t, id := templates[card.chip()][name], firstVNPU+16*n+at
			text += fmt.Sprintf("vnpu card=%d number=0 id=%d template=%s memory=%d cores=%d\n", n, id, name, t.memoryMiB, t.cores)
			nodes = append(nodes, node{host: filepath.Join(k.dir, "nodes", fmt.Sprintf("vdavinci%d", id)), major: majorVDavinci, minor: uint32(id)})
		}
	}
	if err := mknods(nodes); err != nil {
		return err
	}
	return statedir.WriteFile(filepath.Join(k.library(), "vnpus"), []byte(text), 0o644)
}

func (c Card) chip() string { return strings.TrimPrefix(c.Name, "Huawei Ascend ") }

// ascendNodes are the nodes of Ascend's devices, and those that all need.
func (k *Kernel) ascendNodes(dir string) []node {
	var all []node
	for n := range k.topology.ascends() {
		all = append(all, node{host: filepath.Join(dir, fmt.Sprintf("davinci%d", n)), major: majorDavinci, minor: uint32(n)})
	}
	if len(all) > 0 {
		for n, name := range []string{"davinci_manager", "devmm_svm", "hisi_hdc"} {
			all = append(all, node{host: filepath.Join(dir, name), major: majorDavinci, minor: uint32(200 + n)})
		}
	}
	return all
}

// ascend shows Ascend's devices: on the bus, and to the library.
func (k *Kernel) ascend(c Control, files fileSet) error {
	all := k.topology.ascends()
	if len(all) == 0 {
		return nil
	}
	const driver = "usr/local/Ascend/driver"
	files["usr/local/dcmi/libdcmi.so"] = "->" + filepath.Join(k.library(), "libdcmi.so")
	files.text("Driver_Install_Path_Param=/usr/local/Ascend", "etc/ascend_install.info")
	files.text(k.topology.Name, "etc/machine-id")
	files.text("Version="+cmp.Or(c.Drivers["huawei"], "24.1.rc3"), driver, "version.info")
	files.text("the simulated driver's", driver, "lib64/driver/libascend_hal.so")
	state := ""
	if !c.gone("huawei") {
		state = "driver version=" + cmp.Or(c.Drivers["huawei"], "24.1.rc3") + "\n"
	}
	for n, i := range all {
		condition := c.GPUs[k.topology.CardUUID(i)]
		if condition.Missing {
			continue
		}
		dir := "sys/bus/pci/devices/" + k.topology.CardPCI(i)
		files.text("0x19e5", dir, "vendor")
		files.text(fmt.Sprintf("0x%04x", k.topology.Cards[i].DeviceID), dir, "device")
		files.text("0x120000", dir, "class")
		files.number(int64(k.topology.Cards[i].NUMA), dir, "numa_node")
		state += k.ascendState(n, i, condition)
	}
	return statedir.WriteFile(filepath.Join(k.library(), "state"), []byte(state), 0o644)
}

// ascendState is what the library tells of a device.
func (k *Kernel) ascendState(n, i int, c Condition) string {
	card := k.topology.Cards[i]
	memory, used, linked, lost := "ddr", int64(0), 0, 0
	if card.MemoryMHz > 0 {
		memory = "hbm"
	}
	for _, p := range c.Processes {
		used += int64(p.MemoryMiB)
	}
	if card.Linked {
		linked = 1
	}
	if c.Lost {
		lost = 1
	}
	text := fmt.Sprintf("npu card=%d number=0 logic=%d phys=%d chip=%s cores=%d die=%s pci=%s health=%d %s=%d used=%d mhz=%d temperature=%d watts=%d aicore=%d bandwidth=%d clock=%d most=%d ecc=%d faults=%s passed=%s linked=%d lost=%d hang=%s errors=%s\n",
		n, n, n, card.chip(), card.AICores, k.topology.dieID(i), k.topology.CardPCI(i), c.Health, memory, card.MemoryMiB, used+3000,
		card.MemoryMHz, cmp.Or(c.TemperatureC, 42), cmp.Or(c.PowerWatts, 93), c.GPUPercent, c.MemoryPercent, card.CoreMHz/2, card.CoreMHz, c.ECCUncorrected,
		strings.Join(c.Faults, ","), strings.Join(c.PassedFaults, ","), linked, lost, strings.ReplaceAll(strings.Join(c.Hang, ","), "*", "all"), failing(c.Errors))
	for at := range 16 {
		id, busy, held := firstVNPU+16*n+at, uint32(0), uint64(0)
		for _, p := range c.Processes {
			if p.Instance != "" && strings.HasSuffix(p.Instance, fmt.Sprintf("-%d", id)) {
				busy, held = busy+p.Percent, held+p.MemoryMiB
			}
		}
		lost := 0
		if slices.Contains(c.LostPartitions, id) {
			lost = 1
		}
		if lost > 0 || held > 0 {
			text += fmt.Sprintf("vnpu card=%d number=0 id=%d lost=%d busy=%d used=%d\n", n, id, lost, busy, held)
		}
	}
	for _, p := range c.Processes {
		text += fmt.Sprintf("process card=%d number=0 pid=%d bytes=%d\n", n, p.PID, p.MemoryMiB<<20)
	}
	return text
}

// failing lists the calls that fail with their codes, "call:-8009".
func failing(errors map[string]int) string {
	var all []string
	for _, call := range slices.Sorted(maps.Keys(errors)) {
		all = append(all, fmt.Sprintf("%s:%d", strings.ReplaceAll(call, "*", "all"), errors[call]))
	}
	return strings.Join(all, ",")
}
