// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Nodes are the DRM device nodes of a device, by name below /dev/dri: "card0" and
// "renderD128"; each is empty where there is none.
type Nodes struct{ Card, Render string }

// Nodes finds those of a device directory.
func (t Tree) Nodes(device string) Nodes {
	var found Nodes
	for _, name := range t.Names(device, "drm") {
		switch {
		case numbered(name, "card") && found.Card == "":
			found.Card = name
		case numbered(name, "renderD") && found.Render == "":
			found.Render = name
		}
	}
	return found
}

func numbered(name, prefix string) bool {
	digits, found := strings.CutPrefix(name, prefix)
	_, err := strconv.ParseUint(digits, 10, 32)
	return found && err == nil
}

// Sensors are the readings of a device's hwmon, in the kernel's units; -1 is absent.
type Sensors struct {
	// TemperatureC is the device's, MemoryTemperatureC its memory's.
	TemperatureC, MemoryTemperatureC int64
	PowerMicrowatts, PowerCap        int64
	EnergyMicrojoules                int64
	CoreHz, MemoryHz                 int64
}

// Sensors reads the first hwmon of a device.
func (t Tree) Sensors(device string) Sensors {
	s := Sensors{TemperatureC: -1, MemoryTemperatureC: -1, PowerMicrowatts: -1, PowerCap: -1, EnergyMicrojoules: -1, CoreHz: -1, MemoryHz: -1}
	names := t.Names(device, "hwmon")
	if len(names) == 0 {
		return s
	}
	dir := device + "/hwmon/" + names[0]
	for n := 1; n <= 8; n++ {
		key := "temp" + strconv.Itoa(n)
		milli, ok := t.Int(dir, key+"_input")
		if !ok {
			continue
		}
		switch label := t.Line(dir, key+"_label"); {
		case label == "mem" || label == "vram":
			s.MemoryTemperatureC = milli / 1000
		case s.TemperatureC == -1 || label == "junction" || label == "pkg":
			s.TemperatureC = milli / 1000
		}
	}
	for _, file := range []string{"power1_average", "power1_input"} {
		if s.PowerMicrowatts < 0 {
			s.PowerMicrowatts = t.Amount(dir, file)
		}
	}
	for _, file := range []string{"power1_cap", "power1_max", "power1_rated_max"} {
		if s.PowerCap < 0 {
			s.PowerCap = t.Amount(dir, file)
		}
	}
	s.EnergyMicrojoules = t.Amount(dir, "energy1_input")
	s.CoreHz, s.MemoryHz = t.Amount(dir, "freq1_input"), t.Amount(dir, "freq2_input")
	return s
}

// Per is an amount in a larger unit; an absent amount stays absent.
func Per(amount, unit int64) int64 {
	if amount < 0 {
		return -1
	}
	return amount / unit
}

// Client is a program that has a DRM device open: what all its handles together
// use. -1 is absent.
type Client struct {
	PID int
	// Device is the PCI address, as the driver writes it.
	Device      string
	MemoryBytes int64
	// Busy is the time for which engines worked for it, all kinds together. Drivers that
	// count cycles tell instead for how many they did, and of how many.
	Busy                time.Duration
	Cycles, TotalCycles int64
}

// Clients reads which programs use DRM devices, from the file handles of all
// processes. That is work, so a finding stands for a moment.
type Clients struct {
	Tree Tree
	Now  func() time.Time

	mu    sync.Mutex
	found []Client
	at    time.Time // when the scan ended
	pause time.Duration
}

// scanPause is how long the result of a scan of all processes is used. One that took long,
// because programs have very many files open, is used for scanShare times as long as it took.
const (
	scanPause = time.Second
	scanShare = 4
)

// Of lists those of one device.
func (c *Clients) Of(device string) []Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if begun := c.Now(); c.at.IsZero() || begun.Sub(c.at) >= c.pause {
		c.found, c.at = c.Tree.clients(), c.Now()
		c.pause = max(scanPause, scanShare*c.at.Sub(begun))
	}
	var own []Client
	for _, one := range c.found {
		if one.Device == device {
			own = append(own, one)
		}
	}
	return own
}

// clients reads the handles of every process. Several handles of one client are one:
// the kernel tells by drm-client-id.
func (t Tree) clients() []Client {
	var all []Client
	host := t.Link("proc/self/ns/mnt")
	for pid := range t.Each("proc") {
		number, err := strconv.Atoi(pid)
		if err != nil || number <= 0 {
			continue
		}
		own := map[string]*Client{}
		seen := map[string]bool{}
		namespace := t.Link("proc", pid, "ns/mnt")
		for fd := range t.Each("proc", pid, "fd") {
			target, err := os.Readlink(t.Path("proc", pid, "fd", fd))
			if err != nil || !mayBeHandle(target, namespace != "" && namespace == host) {
				continue
			}
			text, ok := t.Text("proc", pid, "fdinfo", fd)
			if !ok {
				continue
			}
			addHandle(own, seen, number, text)
		}
		for _, c := range own {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b Client) int { return cmp.Or(a.PID-b.PID, strings.Compare(a.Device, b.Device)) })
	return all
}

// mayBeHandle reports by the path of an open file whether it can be a device's handle. In a
// container, where root can move and make device nodes, a handle can have any path.
func mayBeHandle(path string, ofTheHost bool) bool {
	return strings.HasPrefix(path, "/dev/dri/") || !ofTheHost && strings.HasPrefix(path, "/")
}

// addHandle adds what one handle tells to its process's use of the device.
func addHandle(own map[string]*Client, seen map[string]bool, pid int, text string) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, found := strings.Cut(line, ":"); found && strings.HasPrefix(key, "drm-") {
			values[key] = strings.TrimSpace(value)
		}
	}
	device, id := values["drm-pdev"], values["drm-client-id"]
	if device == "" || seen[device+" "+id] {
		return
	}
	seen[device+" "+id] = true
	c := own[device]
	if c == nil {
		c = &Client{PID: pid, Device: device, MemoryBytes: -1, Busy: -1, Cycles: -1, TotalCycles: -1}
		own[device] = c
	}
	for _, bytes := range localMemory(values) {
		c.MemoryBytes = max(0, c.MemoryBytes) + bytes
	}
	for key, value := range values {
		addCycles(c, key, value)
		name, engine := strings.CutPrefix(key, "drm-engine-")
		if nanoseconds, err := strconv.ParseInt(strings.TrimSuffix(value, " ns"), 10, 64); err == nil && engine && !strings.HasPrefix(name, "capacity-") && nanoseconds >= 0 {
			c.Busy = max(0, c.Busy) + time.Duration(nanoseconds)
		}
	}
}

// addCycles adds what a line tells of an engine's cycles. All engines count by one clock.
func addCycles(c *Client, key, value string) {
	count, err := strconv.ParseInt(value, 10, 64)
	if err != nil || count < 0 {
		return
	}
	switch {
	case strings.HasPrefix(key, "drm-cycles-"):
		c.Cycles = max(0, c.Cycles) + count
	case strings.HasPrefix(key, "drm-total-cycles-"):
		c.TotalCycles = max(c.TotalCycles, count)
	}
}

// localRegions are the names by which drivers know a device's own memory: amdgpu,
// i915 and xe.
var localRegions = []string{"vram", "vram0", "vram1", "local", "local0", "local1"}

// localMemory is a handle's part of the device's own memory, by region. Newer
// kernels tell resident memory; amdgpu before told it as drm-memory.
func localMemory(values map[string]string) map[string]int64 {
	found := map[string]int64{}
	for _, region := range localRegions {
		for _, key := range []string{"drm-resident-", "drm-total-", "drm-memory-"} {
			if bytes, ok := parseSize(values[key+region]); ok {
				found[region] = bytes
				break
			}
		}
	}
	return found
}

// parseSize reads "4096 KiB" and the like; without a unit it is bytes.
func parseSize(text string) (int64, bool) {
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	factor, known := map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
	if err != nil || n < 0 || !known || n > 1<<50 {
		return 0, false
	}
	return n * factor, true
}
