// SPDX-License-Identifier: MPL-2.0

package ascend

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/dcmi"
	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Survey asks the library what devices there are and how each is.
func (b *Backend) Survey() (hardware.Machine, error) {
	b.refresh()
	type outcome struct {
		devices []dcmi.Device
		version string
		err     error
	}
	o, err := guard.Call(b.guard, "library", func() outcome {
		devices, version, err := b.list()
		return outcome{devices, version, err}
	})
	if err := errors.Join(err, o.err); err != nil {
		return hardware.Machine{}, fmt.Errorf("ask Huawei's driver for devices: %w", err)
	}
	driver := hardware.Driver{Version: o.version, Outdated: b.outdated()}
	var found []answer
	for _, d := range o.devices {
		last := b.last[d.String()]
		a, err := guarded(b, d.String(), func() answer { return b.inspect(d, last) })
		switch {
		case err != nil:
			a = unanswered(d, last, hanging)
		case a.skip:
			continue
		case a.err != nil:
			a = unanswered(d, last, failing(a.err))
		}
		if a.gpu.UUID == "" {
			driver.Unknown = append(driver.Unknown, a.gpu.Problems...)
			continue
		}
		b.last[d.String()] = a.gpu
		found = append(found, a)
	}
	b.join(found)
	b.subscribe(found)
	return b.machine(driver, found), nil
}

// answer is a device's answer, or its error. skip marks a device that is not an
// NPU.
type answer struct {
	gpu  hardware.GPU
	seen seen
	skip bool
	err  error
}

// machine lists the devices found, in the order of the nodes.
func (b *Backend) machine(driver hardware.Driver, found []answer) hardware.Machine {
	slices.SortStableFunc(found, func(x, y answer) int { return x.gpu.Minor - y.gpu.Minor })
	machine := hardware.Machine{Drivers: map[string]hardware.Driver{Vendor: driver}}
	known := map[string]seen{}
	for n := range found {
		g := &found[n].gpu
		g.Vendor, g.Type, g.Index = Vendor, "npu", n
		machine.GPUs = append(machine.GPUs, *g)
		known[g.UUID] = found[n].seen
		for _, p := range g.Partitions {
			part := found[n].seen
			part.vnpu = p.GI
			known[p.UUID] = part
		}
	}
	b.found.Set(known)
	return machine
}

// Absence is the report about every known device when a survey has failed.
func (b *Backend) Absence(err error) hardware.Driver {
	if errors.Is(err, guard.ErrHangs) {
		return hardware.Driver{Absent: &hardware.Problem{Code: "dcmi-timeout", Tentative: true, Message: "Huawei's driver does not answer",
			Action: "look for drv_ lines in the kernel log and in /var/log/npu; it is healthy again when the driver answers, else reboot the node"}}
	}
	return hardware.Driver{Absent: &hardware.Problem{Code: "dcmi-absent", Message: "Huawei's driver is not loaded, or its libdcmi.so not installed",
		Action: "install or load the driver; it is healthy again when npu-smi info shows the device"}}
}

var hanging = hardware.Problem{Code: "dcmi-timeout", Tentative: true, Message: "the driver does not answer for this device",
	Action: "look for drv_ lines in the kernel log and in /var/log/npu; it is healthy again when the driver answers, else reboot the node"}

// failing is the problem of a device that answers with an error.
func failing(err error) hardware.Problem {
	if dcmi.Gone(err) {
		return hardware.Problem{Code: hardware.CodeLost, Fatal: true, Message: "the driver knows the device and cannot reach it",
			Action: "stop its tasks and reboot the node; if it happens again, look at the slot and the card"}
	}
	return hardware.Problem{Code: "dcmi-error", Fatal: true, Message: "the driver cannot read the device: " + err.Error(),
		Action: "look into /var/log/npu; it is healthy again when the driver can, else reset the device (npu-smi set -t reset)"}
}

// unanswered is a device that has told nothing: its last state stands.
func unanswered(d dcmi.Device, g hardware.GPU, problem hardware.Problem) answer {
	if g.UUID == "" {
		problem.Message = d.String() + ": " + problem.Message
	}
	g.Problems = []hardware.Problem{problem}
	return answer{gpu: g, seen: seen{device: d, physical: g.Minor, logical: g.Position, pci: g.PCIBusID}}
}

// inspect asks one device for its identity and state. last is its last known state.
func (b *Backend) inspect(d dcmi.Device, last hardware.GPU) (a answer) {
	isNPU, err := d.IsNPU()
	if err != nil || !isNPU {
		return answer{skip: err == nil, err: err}
	}
	chip, err1 := d.Chip()
	pci, err2 := d.PCI()
	logical, physical, err3 := d.Numbers()
	memory, err4 := d.Memory()
	uuid, err5 := b.uuid(d, pci, last)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return answer{err: err}
	}
	a.gpu = hardware.GPU{UUID: uuid, PCIBusID: pci, Model: "Huawei Ascend " + chip.Name, MemoryMiB: memory.SizeMiB, Minor: physical, Position: logical,
		Traits: hardware.Traits{NUMANode: -1, AICores: chip.AICores, MemoryClockMHz: memory.MHz}}
	if node, ok := b.tree.Int("sys/bus/pci/devices", pci, "numa_node"); ok && node >= 0 {
		a.gpu.NUMANode = int(node)
	}
	if mhz, err := d.ClockMHz(dcmi.ClockAICoreMost); err == nil {
		a.gpu.CoreClockMHz = mhz
	}
	a.seen = seen{device: d, physical: physical, logical: logical, pci: pci}
	a.gpu.Problems = health(d)
	findVNPUs(d, &a.gpu, last)
	return a
}

// uuid names a device by its burned-in ID; where there is none, as in virtual
// machines, by the machine and the slot. A driver that is being unloaded may say that it knows no such
// ID: the device keeps its name.
func (b *Backend) uuid(d dcmi.Device, pci string, last hardware.GPU) (string, error) {
	die, err := d.DieID()
	switch {
	case err != nil && !errors.Is(err, dcmi.ErrUnsupported):
		return "", err
	case err != nil && last.UUID != "" && last.PCIBusID == pci:
		return last.UUID, nil
	case die != "":
		return "NPU-" + die, nil
	}
	sum := sha256.Sum256([]byte("ascend slot " + b.tree.Line("etc/machine-id") + " " + pci))
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("NPU-%s-%s-%s-%s", h[:8], h[8:16], h[16:24], h[24:32]), nil
}

// gradeNames are Huawei's words for how bad a fault is.
var gradeNames = map[dcmi.Health]string{dcmi.Minor: "minor", dcmi.Major: "major", dcmi.Critical: "critical", dcmi.Missing: "not known: the device has not started"}

// health reports a device's faults, where the worst is major or
// critical. Minor ones leave it healthy.
func health(d dcmi.Device) []hardware.Problem {
	grade, err := d.Health()
	switch {
	case errors.Is(err, dcmi.ErrUnsupported):
		return nil
	case err != nil:
		return []hardware.Problem{failing(err)}
	case grade == dcmi.Missing:
		return []hardware.Problem{{Code: "npu-not-started", Fatal: true, Message: "the device has not started, or has gone",
			Action: "wait until it has; else look into /var/log/npu and reset it (npu-smi set -t reset)"}}
	case grade <= dcmi.Minor:
		return nil
	}
	codes, err := d.Faults()
	if err != nil || len(codes) == 0 {
		return []hardware.Problem{{Code: "npu-health", Fatal: grade >= dcmi.Critical, Message: "the device's health is " + gradeNames[min(grade, dcmi.Critical)],
			Action: "look into npu-smi info -t health and /var/log/npu; it is healthy again when the driver says so"}}
	}
	slices.Sort(codes)
	var problems []hardware.Problem
	for _, code := range slices.Compact(codes) {
		message := fmt.Sprintf("fault %08X of a device whose health is %s", code, gradeNames[min(grade, dcmi.Critical)])
		if text, err := d.FaultText(code); err == nil && text != "" {
			message += ": " + text
		}
		problems = append(problems, hardware.Problem{Code: fmt.Sprintf("npu-%08x", code), Fatal: grade >= dcmi.Critical, Message: message,
			Action: "look the code up in Huawei's list of health management errors; it is healthy again when the driver says so, else reset it (npu-smi set -t reset)"})
	}
	return problems
}

// findVNPUs adds a device's vNPUs.
func findVNPUs(d dcmi.Device, g *hardware.GPU, last hardware.GPU) {
	ids, err := d.VNPUs()
	if err != nil {
		if !errors.Is(err, dcmi.ErrUnsupported) || last.Partitioned {
			p := failing(err)
			p.Code, p.Message = "vnpu-unknown", "the driver does not tell which vNPUs the device has: "+err.Error()
			g.PartitionProblem, g.Partitions, g.Partitioned = &p, last.Partitions, last.Partitioned
		}
		return
	}
	slices.Sort(ids)
	for _, id := range ids {
		v, err := d.VNPU(id)
		if err != nil {
			g.Partitions = append(g.Partitions, lostVNPU(g.UUID, last, id, err))
			continue
		}
		g.Partitions = append(g.Partitions, hardware.Partition{UUID: fmt.Sprintf("%s-%s-%d", g.UUID, v.Template, id), Kind: gpu.TypeVNPU, Profile: v.Template,
			Name: g.Model + " " + v.Template, MemoryMiB: v.MemoryMiB, GI: id})
	}
	g.Partitioned = len(g.Partitions) > 0
}

// lostVNPU is a vNPU that cannot be read: as it was, where it ever could be.
func lostVNPU(uuid string, last hardware.GPU, id int, err error) hardware.Partition {
	p := hardware.Partition{UUID: fmt.Sprintf("%s-%d", uuid, id), Kind: gpu.TypeVNPU, GI: id}
	for _, old := range last.Partitions {
		if old.GI == id {
			p = old
		}
	}
	p.Problems = []hardware.Problem{{Code: "vnpu-lost", Fatal: true, Message: "the driver lists the vNPU and cannot read it: " + err.Error(),
		Action: "stop its task, then destroy it (npu-smi set -t destroy-vnpu) and make it anew, or reset the device"}}
	return p
}

// join finds which devices HCCS joins.
func (b *Backend) join(found []answer) {
	for i := range found {
		links := hardware.Links{Kind: hardware.LinkHCCS, Peers: map[string]int{}}
		for j := range found {
			if i == j {
				continue
			}
			switch b.kind(found[i].seen, found[j].seen) {
			case dcmi.TopologyHCCS:
				links.Peers[found[j].gpu.PCIBusID] = 1
			case dcmi.TopologyHCCSSwitched:
				links.Switches = 1
			}
		}
		if links.Total() > 0 {
			found[i].gpu.Links = links
		}
	}
}

// kind is the topology of two devices; 0 where the driver does not tell. It is asked once:
// links that fail are a fault of the device.
func (b *Backend) kind(one, other seen) int {
	pair := [2]string{one.position(), other.position()}
	if kind, asked := b.kinds[pair]; asked {
		return kind
	}
	type outcome struct {
		kind int
		err  error
	}
	o, err := guarded(b, one.position(), func() outcome {
		kind, err := one.device.Topology(other.device)
		return outcome{kind, err}
	})
	if err != nil || o.err != nil && !errors.Is(o.err, dcmi.ErrUnsupported) {
		return 0
	}
	b.kinds[pair] = o.kind
	return o.kind
}
